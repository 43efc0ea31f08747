package cronspec

import (
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	at := func(text string) time.Time {
		when, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return when
	}
	for _, tt := range []struct{ text, zone, after, want string }{
		{"0 3 * * *", "UTC", "2026-01-01T00:00:00Z", "2026-01-01T03:00:00Z"},
		{"0 3 * * *", "UTC", "2026-01-01T03:00:00Z", "2026-01-02T03:00:00Z"},
		{"*/15 9-17 * * MON-FRI", "UTC", "2026-01-02T17:45:00Z", "2026-01-05T09:00:00Z"}, // the next time after Friday is on Monday
		{"0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"@daily", "UTC", "2026-12-31T23:59:59Z", "2027-01-01T00:00:00Z"},
		{"CRON_TZ=Europe/Berlin 0 3 * * *", "", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"},
		{"0 3 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", "2026-07-01T01:00:00Z"},
		// That night has no 02:30, so the job runs an hour later.
		{"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:30:00Z"},
		{"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"}, // that night has 02:30 twice; the job runs at the first
	} {
		s, err := Parse(tt.text, tt.zone)
		if err != nil {
			if tt.zone != "UTC" {
				t.Logf("%s: %v", tt.text, err) // fails if this machine has no time zone data
				continue
			}
			t.Fatal(err)
		}
		if got := s.Next(at(tt.after)); !got.Equal(at(tt.want)) {
			t.Errorf("%s in %q after %s: %s, want %s", tt.text, tt.zone, tt.after, got.UTC().Format(time.RFC3339), tt.want)
		}
	}
	if !(Spec{}).Next(time.Now()).IsZero() {
		t.Error("no schedule is due")
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"0 3 * * *", "@daily", "@every 5m", "CRON_TZ=UTC * * * * *", "TZ=", "TZ=0", "*/0 * * * *", "1-59/2,*/3 22-2 L * 7", "a=b", " "} {
		f.Add(text, "")
		f.Add(text, "UTC")
	}
	f.Fuzz(func(t *testing.T, text, zone string) {
		s, err := Parse(text, zone)
		if err != nil {
			return
		}
		now := time.Now()
		if next := s.Next(now); !next.After(now) {
			t.Errorf("%q in %q is due at %s, which is not after %s", text, zone, next, now)
		}
	})
}
