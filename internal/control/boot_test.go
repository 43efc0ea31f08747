package control

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

func TestACommandThatComesDuringTheBootIsCarriedOutAfterIt(t *testing.T) {
	core := newFakeCore()
	asked := make(chan int, 1)
	core.boot = func(_ context.Context, pid int) error {
		asked <- pid
		core.set(gateway("coder", supervisor.Up, func(v *supervisor.Service) { v.Since = time.Now().Add(-hold) }))
		return nil
	}
	s := serve(t, core, everyone)
	if v, err := s.client().Start(t.Context(), "coder", client.Wait{Wait: true}); err != nil || v.Name != "gateway-coder" {
		t.Errorf("%+v, %v", v, err)
	}
	if pid := <-asked; pid != os.Getpid() {
		t.Errorf("it is process %d that asks, and %d was looked at", os.Getpid(), pid)
	}
}

func TestACommandDoesNotWaitForTheBootForEver(t *testing.T) {
	core := newFakeCore()
	core.boot = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	s := serve(t, core, everyone)
	_, err := s.client().Stop(t.Context(), "coder", client.Wait{Wait: true, Timeout: 50 * time.Millisecond})
	said := (*client.Error)(nil)
	if !errors.As(err, &said) || said.Kind != client.KindTimeout || !strings.Contains(said.Message, "still booting after 50ms") {
		t.Errorf("%v", err)
	}
	if len(core.commands) != 0 {
		t.Errorf("it did %v all the same", core.commands)
	}
}

func TestAHookOfTheBootIsNotKeptWaitingForTheBoot(t *testing.T) {
	core := newFakeCore()
	core.boot = func(context.Context, int) error { return errors.New("that is you") }
	s := serve(t, core, everyone)
	if _, err := s.client().Start(t.Context(), "coder", client.Wait{Wait: true}); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := s.client().Rescan(t.Context()); err != nil {
		t.Errorf("a look at the profiles: %v", err)
	}
}
