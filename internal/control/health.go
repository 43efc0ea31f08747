package control

import (
	"context"
	"fmt"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// pingTime is how long one turn of the supervisor's loop may take before it counts as stuck.
const pingTime = 3 * time.Second

// getHealth always answers with 200; ok is in the body.
func getHealth(s *Server, r *request) (reply, error) {
	if _, err := queryOf(r); err != nil {
		return reply{}, err
	}
	h := client.Health{OK: true, Troubled: []string{}}
	ctx, cancel := context.WithTimeout(r.Context(), pingTime)
	defer cancel()
	if err := s.core.Ping(ctx); err != nil {
		h.OK, h.Reason = false, fmt.Sprintf("the supervisor does not answer: %v", err)
	}
	snap := s.core.Snapshot()
	if snap.Stopping {
		h.OK, h.Reason = false, "the container is stopping"
	}
	if booting, hook := s.core.Booting(); booting && h.OK {
		h.OK, h.Booting, h.Reason = false, true, "the container is booting"+show.Hook(hook)
	}
	if l := s.core.Init().Lease; l != nil && l.State == client.LeaseWaiting {
		h.Waiting = l.Detail
		if h.OK && l.Holder != nil && l.Holder.PID != 0 {
			h.OK, h.Reason = false, l.Detail
		}
	}
	snap, _ = s.known(r.Context(), nil)
	for _, v := range snap.Services {
		wanted := v.Want == supervisor.WantUp && v.Kind != supervisor.KindStandIn && v.Kind != supervisor.KindRun && v.Kind != supervisor.KindCheck
		unserved := s.core.ServedBy(v) == client.ServedByNone
		if unserved && h.OK {
			h.OK, h.Reason = false, fmt.Sprintf("profile %q is wanted, and no gateway serves it: hinit start %s", v.Profile, v.Profile)
		}
		if unserved || wanted && s.judge(v).Troubled() {
			h.Troubled = append(h.Troubled, v.Name)
		}
		if !wanted {
			continue
		}
		h.Wanted++
		if v.State == supervisor.Up {
			h.Up++
		}
	}
	return done(h)
}
