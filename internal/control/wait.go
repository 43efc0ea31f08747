package control

import (
	"context"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/supervisor"
)

const (
	// hold is the default time that a run has to be up to count as started.
	hold = time.Second
	// tailTime is how long the report of a failure waits for the last log lines, which are read after the exit.
	tailTime = 500 * time.Millisecond
)

// goal is what a command waits for.
//
// A start succeeds when a run is ready, a restart when a new run is. A run that can't announce readiness must be up for settle
// instead. A task, which runs once, may also have succeeded by then. A stop succeeds as soon as the service is down.
type goal struct {
	effect
	service *supervisor.Service // as it was before the command
	after   uint64              // only a later run counts
	settle  time.Duration
}

// ending are the states in which a run ends.
var ending = []supervisor.State{supervisor.Stopping, supervisor.Killing, supervisor.Finishing}

// goalOf returns the goal of a command, from the service before and right after the supervisor took it in.
func (s *Server) goalOf(verb client.Verb, before, after *supervisor.Service) goal {
	g := goal{effect: effects[verb], service: before, settle: s.core.Settle()}
	if !g.fresh {
		return g
	}
	g.after = before.Run
	// Still ending: that run may have begun after the first look.
	if after != nil && slices.Contains(ending, after.State) {
		g.after = after.Run
	}
	return g
}

// verdict is the state of a goal.
type verdict struct {
	reached bool
	failed  *client.Error
	died    bool      // failed because a run ended: the account of it is to follow
	again   time.Time // when to look again though nothing happens; zero for never
}

// judge compares a snapshot with the goal. v is the service in it, nil when it was removed.
func (g goal) judge(now time.Time, snap *supervisor.Snapshot, v *supervisor.Service) verdict {
	name := g.service.Name
	if g.want == supervisor.WantDown {
		switch {
		case v == nil, v.State == supervisor.Down && v.Want == supervisor.WantDown:
			return verdict{reached: true}
		case v.Want == supervisor.WantUp:
			return verdict{failed: refuse(client.KindFailed, "superseded: %s was asked to start meanwhile", name)}
		}
		return verdict{}
	}
	switch {
	case v == nil:
		return verdict{failed: refuse(client.KindFailed, "superseded: %s was removed meanwhile", name)}
	case snap.Stopping:
		return verdict{failed: refuse(client.KindStopping, "the container is stopping")}
	case v.Want == supervisor.WantDown && !g.endedByItself(v):
		return verdict{failed: refuse(client.KindFailed, "superseded: %s was asked to stop meanwhile", name)}
	case v.Want == supervisor.WantDown: // a task that has done its work
		well := v.LastExit.Cause == supervisor.CauseClean
		return verdict{reached: well && v.State == supervisor.Down, died: !well && v.State == supervisor.Down}
	}
	if g.crashed(v) {
		return verdict{died: true} // whatever state it is in by now
	}
	switch v.State {
	case supervisor.Up:
		held := v.Since.Add(g.settle)
		switch {
		case v.Run <= g.after:
			return verdict{}
		case v.Announces:
			return verdict{reached: v.Ready}
		}
		return verdict{reached: !now.Before(held), again: held}
	case supervisor.Backoff, supervisor.Parked, supervisor.Failed:
		return verdict{died: true}
	case supervisor.Down, supervisor.Waiting, supervisor.Starting, supervisor.Stopping, supervisor.Killing,
		supervisor.Finishing:
	}
	return verdict{}
}

// crashed reports whether a run has ended since the command so that the start has failed: it was not told to end, and is not
// replaced at once.
func (g goal) crashed(v *supervisor.Service) bool {
	x, old := v.LastExit, g.service.LastExit
	if x == nil || x.Run <= g.after || old != nil && x.Run <= old.Run {
		return false
	}
	switch x.Cause {
	case supervisor.CauseCrash, supervisor.CauseConfig, supervisor.CauseOOM, supervisor.CauseSignal, supervisor.CauseHealth:
		return true
	case supervisor.CauseClean, supervisor.CauseOperator, supervisor.CauseShutdown, supervisor.CauseSpawn, supervisor.CauseReplaced, supervisor.CauseLease:
	}
	return false
}

// endedByItself reports whether the last run has ended by itself since the command. A service that is wanted down is a task then.
func (g goal) endedByItself(v *supervisor.Service) bool {
	x, old := v.LastExit, g.service.LastExit
	return x != nil && x.Run == v.Run && x.Cause != supervisor.CauseOperator && x.Cause != supervisor.CauseShutdown &&
		(old == nil || old.Run < x.Run)
}

// await blocks until the goal is reached, can't be reached any more, timeout is over or ctx ends, and returns the service.
func (s *Server) await(ctx context.Context, g goal, timeout time.Duration) (*supervisor.Service, error) {
	end := time.Now().Add(timeout)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		news := s.core.News()
		snap := s.core.Snapshot()
		v := snap.Find(g.service.Name)
		now := time.Now()
		is := g.judge(now, snap, v)
		switch {
		case is.reached && v == nil:
			return removed(g.service), nil
		case is.reached:
			return v, nil
		case is.failed != nil:
			return nil, is.failed
		case is.died:
			reading, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			return nil, refuse(client.KindFailed, "%s", s.account(reading, v))
		case v != nil && v.State == supervisor.Waiting && strings.HasPrefix(v.Reason, supervisor.ReasonTurn):
			end = now.Add(timeout) // its time begins with its turn
		case !now.Before(end):
			return nil, refuse(client.KindTimeout, "%s", overdue(g, v, timeout))
		}
		next := end
		if !is.again.IsZero() && is.again.Before(end) {
			next = is.again
		}
		timer.Reset(next.Sub(now))
		select {
		case <-news:
		case <-timer.C:
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}

// ended returns the reason why a request ended early.
func ended(ctx context.Context) error {
	if err := closed(ctx); err != nil {
		return err
	}
	return context.Cause(ctx) // the client went away and does not read this
}

func removed(v *supervisor.Service) *supervisor.Service {
	gone := *v
	gone.State, gone.Want, gone.Reason, gone.PID, gone.Ready = supervisor.Down, supervisor.WantDown, "removed", 0, false
	gone.NextStart = time.Time{}
	return &gone
}
