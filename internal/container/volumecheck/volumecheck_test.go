package volumecheck

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
)

// TestAVolumeThatHangsIsExaminedOnce: each doctor would have held up one more call of the few that PID 1 makes at the same time.
func TestAVolumeThatHangsIsExaminedOnce(t *testing.T) {
	free := make(chan struct{})
	begun := make(chan struct{}, 10)
	checks := []check{
		{"space", "hangs", func(f *client.Findings) { f.OK("space", "there is some") }},
		{"home", "a write hangs", func(f *client.Findings) {
			begun <- struct{}{}
			<-free
			f.OK("home", "writable")
		}},
	}
	e := Examiner{checks: checks}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		joined := make(chan client.Findings, 1)
		go func() { joined <- e.Examine(ctx) }()
		if len(begun) == 0 {
			begun <- <-begun // until the first one hangs
		}
		cancel()
		found := <-joined
		if n := len(found); n == 0 || found[n-1] != (client.Finding{Check: "home", Result: "failed", Detail: "a write hangs"}) {
			t.Errorf("while it hangs: %+v", found)
		}
	}
	if len(begun) != 1 {
		t.Errorf("%d examinations hang", len(begun))
	}
	close(free)
	if found := e.Examine(t.Context()); len(found) != 2 || found[1].Result != "ok" {
		t.Errorf("afterwards: %+v", found)
	}
}

// TestAVolumeIsExamined: a directory that is missing is a failure, and nothing is left behind.
func TestAVolumeIsExamined(t *testing.T) {
	cfg := config.Config{Home: t.TempDir()}
	cfg.Logs.Dir = filepath.Join(cfg.Home, "logs")
	e := New(&cfg, boot.Caller())
	results := func() (all []string) {
		for _, f := range e.Examine(t.Context()) {
			if f.Check != "space" { // the disk of the test may be full
				all = append(all, f.Check+" "+f.Result)
			}
		}
		return all
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs failed"}) {
		t.Errorf("without a log directory: %q", got)
	}
	if err := os.Mkdir(cfg.Logs.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := results(); !slices.Equal(got, []string{"home ok", "logs ok"}) {
		t.Errorf("with it: %q", got)
	}
	if left, err := os.ReadDir(cfg.Logs.Dir); len(left) > 0 || err != nil {
		t.Errorf("it has left %v, %v", left, err)
	}
}
