package supervisor

import (
	"slices"
	"time"
)

// service is the machine's record of one service.
type service struct {
	name   string
	policy *Policy  // a step replaces the policy and never modifies it, because undo copies only the pointer
	needs  []string // conditions of Add.Needs that no NeedMet event has reported yet

	state    State
	since    time.Time
	reason   string    // why the service is in this state
	deadline time.Time // when handleTick must act on this service; zero for never

	want          Want
	beingRemoved  bool  `reexec:"removing"`
	singleRun     bool  `reexec:"once"` // the pending start is for one run only
	respawn       bool  // the pending start is an automatic restart
	queuePosition int64 `reexec:"place"` // place in the queue of services that wait to start, lowest first; 0 when not queued

	run

	stopCommand stopCommand `reexec:"command"`

	started      bool
	processSince time.Time `reexec:"turned"` // when the main process last started or ended
	hasChecks    bool      `reexec:"checked"`
	readySince   time.Time // when the service became ready; between two runs, the end of the last run
	lastExit     *Exit     `reexec:"last"`
	succeeded    bool      `reexec:"done"` // the last run ended with a success code and without a request to stop

	restarts      int
	exits         causeCounts // all exits by cause, including failed starts
	restartCauses causeCounts `reexec:"restarted"` // number of restarts, by the cause of the exit before them
	respawns      []time.Time // times of the automatic restarts within Policy.RestartsWindow

	// Counters of failures. They decide about restart delays, crash loops and parking.

	failures        int         // number of fast exits in a row
	quickRestarts   int         `reexec:"quick"`  // consecutive short runs whose exit code requested a restart
	recentFastExits []time.Time `reexec:"recent"` // times of the fast exits within Policy.CrashLoopWindow
	inCrashLoop     bool        `reexec:"looping"`
	loopReported    bool        `reexec:"loopTold"` // the history already explains the crash loop

	taskNeeds  []taskNeed `reexec:"gates"` // runs of RunBeforeEachStart tasks that must succeed before this start, in state waiting
	unmetNeeds []string   `reexec:"lacks"` // names of the unmet needs, in state waiting
	nextRun    time.Time  // when the schedule starts the service next; zero without a schedule
}

type run struct {
	number         uint64 `reexec:"run"`
	pid            int    // PID of the main process, or of the finish command in state finishing; 0 for none
	ready          bool
	readinessText  string `reexec:"said"` // text of the last Ready event
	status         string
	paused         bool
	operatorSignal int          `reexec:"sent"`  // last signal that an operator sent; an exit by this signal has CauseOperator
	requestedCause Cause        `reexec:"asked"` // why hinit asked the process to end; "" if hinit did not ask
	leftover       bool         // the main process has ended, but descendants are alive
	killProgress   killProgress `reexec:"hunt"`

	finishRun       uint64 `reexec:"finish"`    // run number of the finish command, 0 before it starts
	staysDown       bool   `reexec:"permanent"` // the exit code of the finish command forbids another start
	next            nextState
	restartAfterRun bool `reexec:"again"` // start the service again at once after this run

	ownReport    readinessReport `reexec:"own"`    // readiness report of the service itself
	checkReport  readinessReport `reexec:"probed"` // readiness report of the ready and start-up checks
	failedAnswer string          `reexec:"answer"` // last answer of the failed check that ended the run
	parkAfterRun bool            `reexec:"park"`   // park the service after this run
}

// killProgress records whether repeated SIGKILLs reduce the number of processes of a run. A fork bomb can replace its
// processes as fast as they die.
type killProgress struct {
	kills     int
	deaths    int  // number of the run's processes that have ended since its main process ended
	treeGrows bool `reexec:"reborn"` // new processes keep appearing although the machine sends SIGKILL
}

// stopCommand describes the stop command of a service that is being stopped.
type stopCommand struct {
	run uint64    // run number of the stop command; 0 if the command and all its descendants have ended, or if it never ran
	end time.Time // when the command and its descendants will be killed
}

// nextState is the state that a service enters after a run. The machine chooses it when the main process ends. The service
// enters it after the end of the finish command and of all other processes of the run.
type nextState struct {
	state      State
	delay      time.Duration // length of the restart delay
	delayStart time.Time     `reexec:"from"` // when the delay begins
	reason     string
}

// startTime returns when the restart delay ends. It is zero if the state is not backoff.
func (n nextState) startTime() time.Time {
	if n.state != Backoff {
		return time.Time{}
	}
	return n.delayStart.Add(n.delay)
}

// forgetFailures resets the counters of fast exits, so the next restart gets the shortest delay.
func (s *service) forgetFailures() {
	s.failures, s.quickRestarts, s.inCrashLoop, s.loopReported = 0, 0, false, false
	s.recentFastExits = nil
}

func (s *service) isRunning() bool { return s.pid != 0 && s.state != Finishing }

// liveRun returns the run number of the living processes. A started finish command has its own number, and so has a stop
// command that is the last living process. All other processes have the number of the main process.
func (s *service) liveRun() uint64 {
	switch {
	case s.finishRun != 0:
		return s.finishRun
	case s.stopCommandAlone():
		return s.stopCommand.run
	}
	return s.number
}

// stopCommandAlone reports whether the stop command or its descendants are the only living processes of the service.
func (s *service) stopCommandAlone() bool { return s.stopCommand.run != 0 && s.pid == 0 && !s.leftover }

// hasProcess reports whether any process of the service is alive, also a finish or stop command.
func (s *service) hasProcess() bool { return s.pid != 0 || s.leftover || s.stopCommand.run != 0 }

func (s *service) causeOf(e Exited) Cause {
	switch {
	case s.requestedCause != "":
		return s.requestedCause
	case e.Signal != 0 && e.Signal == s.operatorSignal:
		return CauseOperator
	case e.OOM:
		return CauseOOM
	case e.Signal != 0:
		return CauseSignal
	case e.Code != 0 && slices.Contains(s.policy.ParkCodes, e.Code):
		return CauseConfig
	case s.policy.success(e.Code), slices.Contains(s.policy.NoDelayCodes, e.Code):
		return CauseClean
	}
	return CauseCrash
}

// cloneWithout returns a copy of a slice without the elements that drop selects. The original stays the same, because undo may have
// to restore it.
func cloneWithout[T any](in []T, drop func(T) bool) []T {
	return slices.DeleteFunc(slices.Clone(in), drop)
}

// causeCounts counts exits by cause. It is immutable, so snapshots can share it.
type causeCounts []CauseCount

// plus returns a copy with the count of cause increased by n.
func (c causeCounts) plus(cause Cause, n int) causeCounts {
	out := slices.Clone(c)
	i := slices.IndexFunc(out, func(of CauseCount) bool { return of.Cause == cause })
	if i < 0 {
		return append(out, CauseCount{cause, n})
	}
	out[i].Count += n
	if out[i].Count <= 0 {
		out = slices.Delete(out, i, i+1)
	}
	return out
}
