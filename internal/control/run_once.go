package control

import (
	"context"
	"slices"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

// onceTime is a client's default wait for the end of a task.
const onceTime = time.Hour

// running are the states of a task in which a further start means the run there is.
var running = []supervisor.State{supervisor.Starting, supervisor.Up, supervisor.Finishing}

// awaitEnd returns a task when the run that was asked for has ended and no other one follows by itself at once.
func (s *Server) awaitEnd(ctx context.Context, before *supervisor.Service, timeout time.Duration) (*supervisor.Service, error) {
	first := before.Run + 1
	if slices.Contains(running, before.State) {
		first = before.Run
	}
	over := time.NewTimer(timeout)
	defer over.Stop()
	for {
		news := s.core.News()
		snap := s.core.Snapshot()
		v := snap.Find(before.Name)
		switch {
		case v == nil:
			return nil, refuse(client.KindFailed, "superseded: %s was removed meanwhile", before.Name)
		case v.State == supervisor.Down || v.State == supervisor.Failed || v.State == supervisor.Parked:
			if x := v.LastExit; x != nil && x.Run >= first && (!snap.Stopping || v.Done) {
				return s.withTail(ctx, v), nil
			}
			if !snap.Stopping {
				return nil, refuse(client.KindFailed, "superseded: %s was asked to stop meanwhile", before.Name)
			}
			return nil, refuse(client.KindStopping, "the container is stopping")
		}
		select {
		case <-news:
		case <-over.C:
			return nil, refuse(client.KindTimeout, "%s has not ended after %s: it is %s: %s; it goes on", v.Name, rounded(timeout), stateText(v), printable(v.Reason))
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}
