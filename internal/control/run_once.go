package control

import (
	"context"
	"net/http"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/supervisor"
)

// onceTime is a client's default wait for the end of a task.
const onceTime = time.Hour

// postRunOnce runs a task and, unless told otherwise, waits for the end of the run. A run that is under way will do.
func postRunOnce(s *Server, r *request) (reply, error) {
	wait, timeout, _, err := parseWait(r.body, onceTime)
	if err != nil {
		return reply{}, err
	}
	begin := time.Now()
	limit := patience(wait, timeout)
	ctx, cancel := context.WithTimeoutCause(r.Context(), limit, late(limit))
	defer cancel()
	before, err := s.lookup(ctx, r, limit)
	switch {
	case err != nil:
		return reply{}, err
	case !before.Task:
		return reply{}, refuse(client.KindBadRequest, "%s is no task, so it has no end; set services.%s.once in hinit.yaml, or type: hinit start %s", before.Name, before.Name, before.Name)
	}
	if err := s.core.Command(ctx, client.VerbStart, before.Name); err != nil {
		return reply{}, s.soFar(ctx, before.Name, err)
	}
	if !wait {
		after := s.core.Snapshot().Find(before.Name)
		if after == nil {
			after = removed(before)
		}
		return s.outcome(r, http.StatusAccepted, after)
	}
	v, err := s.awaitEnd(r.Context(), before, timeout-time.Since(begin))
	if err != nil {
		return reply{}, err
	}
	v = s.withTail(r.Context(), v)
	view := s.view(v, r.who)
	if wantsText(r.Request) {
		return text(http.StatusOK, http.Header{}, []byte(show.Ended(view)+"\n")), nil
	}
	return later(http.StatusOK, view)
}

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
				return v, nil
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
