package supervisor

import (
	"slices"
	"time"
)

// service is the machine's state of one service.
type service struct {
	name   string
	policy *Policy  // replaced, never changed: undo copies the service shallowly
	needs  []string // unmet needs, for which no NeedMet event has come yet

	state    State
	since    time.Time
	reason   string    // why the service is in this state
	deadline time.Time // when the state changes by itself; zero for never

	want     Want
	removing bool
	once     bool  // the pending start is wanted for one run only
	respawn  bool  // the pending start is an automatic restart
	place    int64 // position in the queue for turns, lowest first; 0 when not in the queue

	run

	command stopCommand

	started      bool
	processSince time.Time `reexec:"turned"` // when its main process last started or ended
	last         *Exit

	tally
	readiness
	fastExits
	order
}

// tally counts how runs ended.
type tally struct {
	restarts  int
	exits     causeCounts // all ends by cause, including failed starts
	restarted causeCounts // the exits that a restart followed, by cause
}

// readiness is the part of the readiness that is kept between runs.
type readiness struct {
	checked    bool      // the service is ready only after its checks pass too
	readySince time.Time // since when the service is ready; while nothing of the service runs: when its last run was over
}

// fastExits has the counters that decide about restart delays, crash loops and parking.
type fastExits struct {
	failures      int         // fast exits in a row
	quickRestarts int         `reexec:"quick"` // short runs in a row that ended with a request to restart
	recent        []time.Time // fast exits within the window
	looping       bool
	loopTold      bool // the history already says why it is in a crash loop
}

// run is the current or last run of a service, including its finish command.
type run struct {
	id             uint64 `reexec:"run"`
	pid            int    // main process; in state finishing the finish command; 0 for none
	ready          bool
	said           string // text of the last Ready event
	status         string // text of the last Notified event with a status
	paused         bool
	sent           int          // last signal an operator sent
	requestedCause Cause        `reexec:"asked"` // why hinit asked the process to end; "" if it did not ask
	leftover       bool         // the main process is gone, but descendants are alive
	killProgress   killProgress `reexec:"hunt"`

	finish    uint64 // number of the finish command's run, 0 before that starts
	permanent bool   // the finish command asked for no further start
	next      nextState
	again     bool // restart at once after this run

	checks
}

// killProgress records whether repeated SIGKILLs reduce the processes of a run.
type killProgress struct {
	kills   int
	deaths  int  // number of the run's processes that have ended since its main process ended
	growing bool `reexec:"reborn"` // new processes appear in spite of the SIGKILLs
}

// stopCommand is the stop command of a service while it is alive.
type stopCommand struct {
	run uint64    // 0 when neither the command nor a descendant of it is alive
	end time.Time // when the command and its descendants are killed
}

// nextState is the next state, entered when all processes of a run and of its finish command are gone.
type nextState struct {
	state  State
	delay  time.Duration // before the start
	from   time.Time     // when the delay begins
	reason string
}

// startTime returns when the service starts, or zero for no start.
func (n nextState) startTime() time.Time {
	if n.state != Backoff {
		return time.Time{}
	}
	return n.from.Add(n.delay)
}

// forgetFailures clears the counters of failures of earlier runs.
func (s *service) forgetFailures() {
	s.failures, s.quickRestarts, s.looping, s.loopTold = 0, 0, false, false
	s.recent = nil
}

// runs reports whether the main process is alive.
func (s *service) runs() bool { return s.pid != 0 && s.state != Finishing }

// live returns the run whose processes are alive: normally the current run. If only the stop command is left, it returns the run
// of that command. After the finish command has started, it returns that command's run.
func (s *service) live() uint64 {
	switch {
	case s.finish != 0:
		return s.finish
	case s.onlyStopCommandLives():
		return s.command.run
	}
	return s.id
}

// onlyStopCommandLives reports whether only the stop command or its descendants are alive.
func (s *service) onlyStopCommandLives() bool { return s.command.run != 0 && s.pid == 0 && !s.leftover }

// hasProcess reports whether any process of the service is alive.
func (s *service) hasProcess() bool { return s.pid != 0 || s.leftover || s.command.run != 0 }

func (s *service) classify(e Exited) Cause {
	switch {
	case s.requestedCause != "":
		return s.requestedCause
	case e.Signal != 0 && e.Signal == s.sent:
		return CauseOperator
	case e.OOM:
		return CauseOOM
	case e.Signal != 0:
		return CauseSignal
	case e.Code != 0 && slices.Contains(s.policy.ParkOn, e.Code):
		return CauseConfig
	case s.policy.success(e.Code), slices.Contains(s.policy.ImmediateOn, e.Code):
		return CauseClean
	}
	return CauseCrash
}

// without returns a copy of a slice without the elements that drop selects. The original stays unchanged, for undo.
func without[T any](in []T, drop func(T) bool) []T { return slices.DeleteFunc(slices.Clone(in), drop) }

// causeCounts counts exits by cause. It is immutable, so snapshots can share it.
type causeCounts []CauseCount

// with returns a copy in which n is added to the count of a cause.
func (c causeCounts) with(cause Cause, n int) causeCounts {
	out := slices.Clone(c)
	i := slices.IndexFunc(out, func(of CauseCount) bool { return of.Cause == cause })
	if i < 0 {
		return append(out, CauseCount{cause, n})
	}
	if out[i].N += n; out[i].N <= 0 {
		out = slices.Delete(out, i, i+1)
	}
	return out
}
