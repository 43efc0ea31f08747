package control

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/supervisor"
)

// reapingBackend is a core whose services count as down after the server has reported the end of their main process.
type reapingBackend struct{ *fakeBackend }

func (c reapingBackend) ReapNow(_ context.Context, dead ...int) error {
	var now []*supervisor.Service
	for _, v := range c.Snapshot().Services {
		if slices.Contains(dead, v.PID) {
			v = newGateway(v.Profile, supervisor.Backoff)
		}
		now = append(now, v)
	}
	c.setServices(now...)
	return nil
}

// A status must show a dead gateway as ended, even if a tracer keeps the zombie and no search has come to the gateway yet. With
// many services, a search takes several statuses.
func TestADeadGatewayThatATracerHoldsIsShownAsUpInNoView(t *testing.T) {
	dead := startZombie(t)
	for view, state := range map[string]func(*Server) (up bool){
		"status": func(s *Server) bool {
			st, err := s.status(t.Context(), s.backend.Snapshot(), nil, nil, peer{})
			return err != nil || st.Services[0].State == client.StateUp
		},
		"health check": func(s *Server) bool {
			var h client.Health
			s.countServices(t.Context(), s.backend.Snapshot(), &h)
			return h.Up > 0
		},
		"status that is followed": func(s *Server) bool {
			now := time.Now()
			f := &statusFollower{server: s, sentServices: s.backend.Snapshot().Services, reapedAt: now.Add(-minReapInterval)}
			change, _ := f.nextChange(t.Context())
			return len(change.Services) != 1 || change.Services[0].State == client.StateUp
		},
	} {
		v := newGateway("a", supervisor.Up, func(v *supervisor.Service) { v.PID, v.Ready = dead, true })
		if state(serve(t, reapingBackend{newFakeBackend(v)}, readableByAll).Server) {
			t.Errorf("%s: the gateway is up", view)
		}
	}
}

// startZombie returns the PID of a process that has ended, and stays unreaped until the end of the test.
func startZombie(t *testing.T) int {
	t.Helper()
	dead := exec.CommandContext(t.Context(), "true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dead.Wait() })
	if err := unix.Waitid(unix.P_PID, dead.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	return dead.Process.Pid
}
