package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/supervisor"
)

// tailTimeout limits how long an error message waits for the last log lines of a run. The lines are complete only some time after
// the exit.
const tailTimeout = 2 * time.Second

// commandGoal is the state that a command waits for.
//
// A start waits until the service is ready, and a restart until it is ready in a new run. A service that can't report readiness
// counts as ready after it has been up for settleTime, and a task after a successful run. A stop waits until the service is
// down. If once is set, the command waits until the task has ended and does not start again at once.
type commandGoal struct {
	verbEffect
	runOnce    bool
	service    *supervisor.Service // the service before the command
	afterRun   uint64              // only runs with a higher number count
	settleTime time.Duration
}

var endingStates = []supervisor.State{supervisor.Stopping, supervisor.Killing, supervisor.Finishing}

// goalOf returns the goal of a command. before is the service before the command, and after is the service when the supervisor
// has accepted the command.
func (s *Server) goalOf(verb client.Verb, once bool, before, after *supervisor.Service) commandGoal {
	g := commandGoal{verbEffect: verbEffects[verb], runOnce: once, service: before, settleTime: s.backend.SettleTime()}
	switch {
	case once && slices.Contains(activeStates, before.State):
		g.afterRun = before.Run - 1
	case g.needsNewRun && slices.Contains(endingStates, after.State):
		g.afterRun = after.Run // an ending run does not count, even if it began after before was read
	case once, g.needsNewRun:
		g.afterRun = before.Run
	}
	return g
}

// goalVerdict says whether the goal is reached or has failed. Otherwise the wait continues.
type goalVerdict struct {
	reached      bool
	failed       *client.Error
	failedByExit bool      // the goal has failed because a run has ended; await adds how the run ended
	recheckAt    time.Time // time of the next comparison, even without a change; zero: not needed
}

// check compares a service with the goal. v is the service in snap, or nil if the service was removed.
func (g commandGoal) check(now time.Time, snap *supervisor.Snapshot, v *supervisor.Service) goalVerdict {
	name := g.service.Name
	if g.want == supervisor.WantDown {
		switch {
		case v == nil, v.State == supervisor.Down && v.Want == supervisor.WantDown:
			return goalVerdict{reached: true}
		case v.Want == supervisor.WantUp:
			return goalVerdict{failed: newError(client.KindFailed, "superseded: %s was asked to start meanwhile", name)}
		}
		return goalVerdict{}
	}
	switch {
	case v == nil:
		return goalVerdict{failed: newError(client.KindFailed, "superseded: %s was removed meanwhile", name)}
	case g.runOnce && v.State != supervisor.Down && v.State != supervisor.Failed && v.State != supervisor.Parked:
		return goalVerdict{}
	case g.runOnce && v.LastExit != nil && v.LastExit.Run > g.afterRun && (!snap.Stopping || v.Done):
		return goalVerdict{reached: true}
	case g.runOnce && !snap.Stopping:
		return goalVerdict{failed: newError(client.KindFailed, "superseded: %s was asked to stop meanwhile", name)}
	case snap.Stopping:
		return goalVerdict{failed: newError(client.KindStopping, "the container is stopping")}
	case v.Want == supervisor.WantDown && !g.endedByItself(v):
		return goalVerdict{failed: newError(client.KindFailed, "superseded: %s was asked to stop meanwhile", name)}
	case v.Want == supervisor.WantDown: // a finished task is wanted down
		return goalVerdict{reached: v.Done && v.State == supervisor.Down, failedByExit: !v.Done && v.State == supervisor.Down}
	case g.crashed(v): // a crash fails the start even if the service is up again
		return goalVerdict{failedByExit: true}
	case v.State == supervisor.Backoff, v.State == supervisor.Parked, v.State == supervisor.Failed:
		return goalVerdict{failedByExit: true}
	case v.State != supervisor.Up, v.Run <= g.afterRun:
		return goalVerdict{}
	case v.ReportsReadiness:
		return goalVerdict{reached: v.Ready}
	}
	held := v.Since.Add(g.settleTime)
	return goalVerdict{reached: !now.Before(held), recheckAt: held}
}

// crashCauses are the causes of an exit that make a start fail.
var crashCauses = []supervisor.Cause{supervisor.CauseCrash, supervisor.CauseConfig, supervisor.CauseOOM, supervisor.CauseSignal, supervisor.CauseHealth}

// crashed reports whether the start has failed: a run after the command has ended for one of crashCauses.
func (g commandGoal) crashed(v *supervisor.Service) bool {
	x, old := v.LastExit, g.service.LastExit
	return x != nil && x.Run > g.afterRun && (old == nil || x.Run > old.Run) && slices.Contains(crashCauses, x.Cause)
}

// endedByItself reports whether a run after the command has ended without a stop by an operator or the shutdown.
func (g commandGoal) endedByItself(v *supervisor.Service) bool {
	x, old := v.LastExit, g.service.LastExit
	return x != nil && x.Run == v.Run && x.Cause != supervisor.CauseOperator && x.Cause != supervisor.CauseShutdown &&
		(old == nil || old.Run < x.Run)
}

// awaitGoal blocks until the goal is reached or has failed, timeout has passed, or ctx ends. It returns the service in its state
// at that time.
func (s *Server) awaitGoal(ctx context.Context, g commandGoal, timeout time.Duration) (*supervisor.Service, error) {
	end := time.Now().Add(timeout)
	for {
		changed := s.backend.Changed()
		snap := s.backend.Snapshot()
		v := snap.Find(g.service.Name)
		now := time.Now()
		is := g.check(now, snap, v)
		switch {
		case is.reached && v == nil:
			return removedService(g.service), nil
		case is.reached && g.runOnce:
			return s.withTail(ctx, v), nil
		case is.reached:
			return v, nil
		case is.failed != nil:
			return nil, is.failed
		case is.failedByExit:
			reading, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			return nil, newError(client.KindFailed, "%s", s.describeFailure(reading, v))
		case v != nil && !g.runOnce && v.State == supervisor.Waiting && strings.HasPrefix(v.Reason, supervisor.ReasonQueued):
			end = now.Add(timeout) // the time limit begins with the service's turn to start
		case !now.Before(end):
			return nil, newError(client.KindTimeout, "%s", describeTimeout(g, v, timeout))
		}
		next := end
		if !is.recheckAt.IsZero() && is.recheckAt.Before(end) {
			next = is.recheckAt
		}
		select {
		case <-changed:
		case <-time.After(next.Sub(now)):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// latestState returns the present state of a service. A removed service counts as down.
func (s *Server) latestState(v *supervisor.Service) *supervisor.Service {
	if now := s.backend.Snapshot().Find(v.Name); now != nil {
		return now
	}
	return removedService(v)
}

func removedService(v *supervisor.Service) *supervisor.Service {
	gone := *v
	gone.State, gone.Want, gone.Reason, gone.PID, gone.Ready = supervisor.Down, supervisor.WantDown, "removed", 0, false
	gone.NextStart = time.Time{}
	return &gone
}

// taskWaitTimeout is how long a client waits by default for the end of a task.
const taskWaitTimeout = time.Hour

// activeStates are the states in which a start of a task begins no new run.
var activeStates = []supervisor.State{supervisor.Starting, supervisor.Up, supervisor.Finishing}

const (
	tailLines = 3
	tailWidth = 200
)

// describeFailure describes why a service has failed to start: its state, how its run ended, and its last log lines. Quotes
// keep the log lines from controlling a terminal.
func (s *Server) describeFailure(ctx context.Context, v *supervisor.Service) string {
	v = s.withTail(ctx, v)
	var b strings.Builder
	x := v.LastExit
	reason := v.Reason
	if v.State == supervisor.Down && x != nil { // an ended task is down, so describe its end
		reason = exitText(x)
	}
	over := slices.Contains([]supervisor.State{supervisor.Backoff, supervisor.Parked, supervisor.Failed, supervisor.Down}, v.State)
	again := x != nil && x.PID != 0 && !over // after a new run has begun, describe the end of the previous run
	if again {
		fmt.Fprintf(&b, "%s %s", v.Name, exitText(x))
	} else {
		fmt.Fprintf(&b, "%s is %s: %s", v.Name, stateText(v), show.EscapeLine(reason))
	}
	if x != nil {
		fmt.Fprintf(&b, " (%s)", x.Cause)
	}
	if again {
		fmt.Fprintf(&b, " and is %s again", stateText(v))
	}
	if wait := time.Until(v.NextStart); !v.NextStart.IsZero() && wait > 0 {
		fmt.Fprintf(&b, ", starts again in %s", show.FormatDuration(wait))
	}
	if x != nil && len(x.Tail) > 0 {
		last := slices.Clone(x.Tail[max(0, len(x.Tail)-tailLines):])
		for i, line := range last {
			last[i] = quote(line)
		}
		b.WriteString("; last lines: " + strings.Join(last, ", "))
	}
	return b.String()
}

// describeTimeout describes the state of a service at the time limit of a command.
func describeTimeout(g commandGoal, v *supervisor.Service, timeout time.Duration) string {
	switch {
	case g.runOnce:
		return fmt.Sprintf("%s has not ended after %s: it is %s: %s; it continues", v.Name, show.FormatDuration(timeout), stateText(v), show.EscapeLine(v.Reason))
	case v.State == supervisor.Up && g.want == supervisor.WantUp && v.Run > g.afterRun && v.ReportsReadiness:
		text := fmt.Sprintf("%s is up (pid %d) and has not said within %s that it is ready", v.Name, v.PID, show.FormatDuration(timeout))
		if v.Warning != "" {
			text += ": " + show.EscapeLine(v.Warning)
		}
		return text
	case v.State == supervisor.Up && g.want == supervisor.WantUp && v.Run > g.afterRun:
		return fmt.Sprintf("%s is up, but was not for %s within %s", v.Name, g.settleTime, show.FormatDuration(timeout))
	}
	return fmt.Sprintf("%s is not %s after %s: it is %s: %s", v.Name, g.participle, show.FormatDuration(timeout), stateText(v), show.EscapeLine(v.Reason))
}

func stateText(v *supervisor.Service) string {
	switch {
	case v.State == supervisor.Backoff && v.CrashLoop:
		return "in a crash loop"
	case v.State == supervisor.Backoff:
		return "in backoff"
	}
	return string(v.State)
}

func exitText(x *supervisor.Exit) string {
	switch {
	case x.PID == 0:
		return x.Error
	case x.Signal != 0:
		return fmt.Sprintf("ended by signal %d", x.Signal)
	}
	return fmt.Sprintf("exited with code %d", x.Code)
}

// withTail returns the service with the last log lines of the ended run. It waits for these lines up to tailTimeout.
func (s *Server) withTail(ctx context.Context, v *supervisor.Service) *supervisor.Service {
	if v.LastExit == nil || v.LastExit.PID == 0 {
		return v
	}
	ctx, cancel := context.WithTimeout(ctx, tailTimeout)
	defer cancel()
	for v.LastExit.Tail == nil {
		changed := s.backend.Changed()
		now := s.backend.Snapshot().Find(v.Name)
		if now == nil || now.LastExit == nil || now.LastExit.Run != v.LastExit.Run || now.LastExit.Tail == nil && !pause.Until(ctx, changed) {
			break
		}
		with := *v
		with.LastExit = now.LastExit
		v = &with
	}
	return v
}

func quote(line string) string {
	if len(line) > tailWidth {
		line = strings.ToValidUTF8(line[:tailWidth], "") + "…"
	}
	return strconv.Quote(line)
}
