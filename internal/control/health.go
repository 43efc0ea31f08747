package control

import (
	"context"
	"fmt"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// pingTime is how long the supervisor's loop may take for one turn before it counts as stuck. A turn takes well under a
// millisecond unless a spawn hangs on a file system.
const pingTime = 3 * time.Second

// getHealth answers with 200 whether hinit is healthy or not: ok is in the body.
func getHealth(s *Server, r *request) (reply, error) {
	if _, err := queryOf(r); err != nil {
		return reply{}, err
	}
	h := client.Health{OK: true, Troubled: []string{}}
	if core, ok := s.core.(Pinger); ok {
		ctx, cancel := context.WithTimeout(r.Context(), pingTime)
		defer cancel()
		if err := core.Ping(ctx); err != nil {
			h.OK, h.Reason = false, fmt.Sprintf("the supervisor does not answer: %v", err)
		}
	}
	snap := s.core.Snapshot()
	if snap.Stopping {
		h.OK, h.Reason = false, "the container is stopping"
	}
	if core, ok := s.core.(Booter); ok && h.OK {
		if booting, hook := core.Booting(); booting {
			h.OK, h.Booting, h.Reason = false, true, "the container is booting"+show.Hook(hook)
		}
	}
	snap, _ = s.known(r.Context(), nil)
	for _, v := range snap.Services {
		if v.Want != supervisor.WantUp || v.Kind == supervisor.KindStandIn {
			continue
		}
		h.Wanted++
		if v.State == supervisor.Up {
			h.Up++
		}
		if v.CrashLoop || v.State == supervisor.Parked || v.State == supervisor.Failed {
			h.Troubled = append(h.Troubled, v.Name)
		}
	}
	return done(h)
}
