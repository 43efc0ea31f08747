package profiles_test

import (
	"testing"
	"time"

	"hinit/profiles"
)

// TestASlowStopIsRemembered checks that the duration of a slow stop is kept until a fast stop.
func TestASlowStopIsRemembered(t *testing.T) {
	s := profiles.NewVolume(t)
	see := func(want time.Duration) {
		t.Helper()
		if took, _ := s.LastSlowStop(); took != want {
			t.Errorf("%s, want %s", took, want)
		}
	}
	note := func(took time.Duration) {
		t.Helper()
		if err := s.RecordStopDuration(took, 8*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	see(0)
	note(2 * time.Second)
	see(0)
	note(7 * time.Second)
	see(7 * time.Second)
	note(time.Second)
	see(0)
	for _, lie := range []string{"-5 8000", "7000", "7000 99999999999", "rm -rf 8", "7000 0"} {
		profiles.Write(t, s, ".hinit-slow-stop", lie)
		see(0)
	}
}
