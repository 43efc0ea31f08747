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
	core := newFakeBackend()
	asked := make(chan int, 1)
	core.awaitBoot = func(_ context.Context, pid int) error {
		asked <- pid
		core.setServices(newGateway("coder", supervisor.Up, func(v *supervisor.Service) { v.Since = time.Now().Add(-testSettleTime) }))
		return nil
	}
	s := serve(t, core, readableByAll)
	if v, err := s.client().Start(t.Context(), "coder", client.WaitOptions{Wait: true}); err != nil || v.Name != "gateway-coder" {
		t.Errorf("%+v, %v", v, err)
	}
	if pid := <-asked; pid != os.Getpid() {
		t.Errorf("it is process %d that asks, and %d was looked at", os.Getpid(), pid)
	}
}

func TestACommandDoesNotWaitForTheBootForEver(t *testing.T) {
	core := newFakeBackend()
	core.awaitBoot = func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() }
	s := serve(t, core, readableByAll)
	_, err := s.client().Stop(t.Context(), "coder", client.WaitOptions{Wait: true, Timeout: 50 * time.Millisecond})
	clientErr := (*client.Error)(nil)
	if !errors.As(err, &clientErr) || clientErr.Kind != client.KindTimeout || !strings.Contains(clientErr.Message, "still booting after 50ms") {
		t.Errorf("%v", err)
	}
	if len(core.commands) != 0 {
		t.Errorf("it did %v all the same", core.commands)
	}
}

func TestAHookOfTheBootIsNotKeptWaitingForTheBoot(t *testing.T) {
	core := newFakeBackend()
	core.awaitBoot = func(context.Context, int) error { return errors.New("that is you") }
	s := serve(t, core, readableByAll)
	if _, err := s.client().Start(t.Context(), "coder", client.WaitOptions{Wait: true}); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v", err)
	}
	if err := s.client().Rescan(t.Context()); err != nil {
		t.Errorf("a look at the profiles: %v", err)
	}
}

func TestWhatTheBootHasNotComeToIsWaitingAndNotUnknown(t *testing.T) {
	registered := newGateway("coder", supervisor.Up)
	core := newFakeBackend(registered)
	waits := func(name string) *supervisor.Service {
		return newGateway(name, supervisor.Waiting, func(v *supervisor.Service) { v.Needs, v.PID = []string{"profiles"}, 0 })
	}
	core.booting, core.hook = true, &client.BootHook{Name: "update.sh", Number: 1, Total: 2, Seconds: 3}
	core.expected = []*supervisor.Service{waits("coder"), waits("writer")}
	s := serve(t, core, readableByAll)
	st, err := s.client().Status(t.Context())
	if err != nil || len(st.Services) != 2 || st.Services[0].State != client.StateUp || st.Services[0].Expected ||
		st.Services[1].Name != "gateway-writer" || st.Services[1].State != client.StateWaiting || !st.Services[1].Expected {
		t.Errorf("%+v, %v", st.Services, err)
	}
	if v, err := s.client().Service(t.Context(), "writer"); err != nil || !v.Expected {
		t.Errorf("%+v, %v", v, err)
	}
	if _, err := s.client().Status(t.Context(), "nobody"); !errors.Is(err, client.ErrUnknown) {
		t.Errorf("%v", err)
	}
	h, err := s.client().Health(t.Context())
	if err != nil || h.OK || !h.Booting || h.Reason != "the container is booting: hook 1 of 2 (update.sh), 3s" {
		t.Errorf("%+v, %v", h, err)
	}
	if h.WantedUp != 2 || h.Up != 1 {
		t.Errorf("%+v", h)
	}
}
