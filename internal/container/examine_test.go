package container

import (
	"context"
	"testing"

	"hinit/client"
)

// TestAVolumeThatHangsIsExaminedOnce: each doctor would have held up one more call of the few that PID 1 makes at the same time.
func TestAVolumeThatHangsIsExaminedOnce(t *testing.T) {
	free := make(chan struct{})
	begun := make(chan struct{}, 10)
	checks := []volumeCheck{
		{"space", "hangs", func(f *client.Findings) { f.OK("space", "there is some") }},
		{"home", "a write hangs", func(f *client.Findings) {
			begun <- struct{}{}
			<-free
			f.OK("home", "writable")
		}},
	}
	var e examiner
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		joined := make(chan client.Findings, 1)
		go func() { joined <- e.examine(ctx, checks) }()
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
	if found := e.examine(t.Context(), checks); len(found) != 2 || found[1].Result != "ok" {
		t.Errorf("afterwards: %+v", found)
	}
}
