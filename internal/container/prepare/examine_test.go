package prepare

import (
	"context"
	"testing"

	"hinit/client"
	"hinit/internal/boot"
)

// Several doctors must share one examination of a volume that hangs. PID 1 can make only a few blocking calls at the same time.
func TestAVolumeThatHangsIsExaminedOnce(t *testing.T) {
	free := make(chan struct{})
	begun := make(chan struct{}, 10)
	e := VolumeExaminer{runExamination: func(_ context.Context, take func(boot.Message)) error {
		say := func(check string) {
			var found client.Findings
			found.OK(check, "well")
			take(boot.Message{Findings: found})
		}
		say("space")
		take(boot.Message{Examining: &boot.Examining{Check: "home", Silent: "a write hangs"}})
		begun <- struct{}{}
		<-free
		say("home")
		return nil
	}}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		joined := make(chan client.Findings, 1)
		go func() { joined <- e.Examine(ctx) }()
		if len(begun) == 0 {
			begun <- <-begun
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
