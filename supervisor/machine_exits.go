package supervisor

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// This file handles the start and the exit of processes of a service, and chooses the state that follows an exit.

func (m *Machine) handleSpawned(now time.Time, s *service, e Spawned) {
	if s.state == Finishing && s.pid == 0 {
		s.pid = e.PID
		return
	}
	if s.state != Starting {
		return
	}
	wanted := s.want == WantUp || s.singleRun
	anew := s.started && !s.policy.IsConfiguredTask
	s.pid, s.processSince, s.readySince = e.PID, now, time.Time{}
	s.started, s.singleRun = true, false
	forget := time.Time{}
	if s.failures > 0 || s.inCrashLoop {
		forget = now.Add(s.policy.ResetAfter)
	}
	m.setState(now, s, Up, forget, "started")
	s.ownReport.ready = !s.policy.ReportsReadiness
	m.updateReadiness(now, s)
	if !wanted || m.phase != phaseRunning {
		m.requestEnd(now, s, "stopped while starting")
	}
	if anew {
		m.propagateRestart(now, s)
	}
}

func (m *Machine) handleSpawnFailed(now time.Time, s *service, e SpawnFailed) {
	if s.state == Finishing && s.pid == 0 {
		if e.Code != 127 { // exit code 127 means that the service has no finish command
			m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: "cannot run its finish command: " + e.Error}})
		}
		m.handleFinishExit(now, s, -1)
		m.enterNextState(now, s)
		return
	}
	if s.state != Starting {
		return
	}
	s.singleRun, s.succeeded, e.Error = false, false, ShortenText(e.Error)
	m.recordExit(now, s, &Exit{Run: s.number, Code: -1, Cause: CauseSpawn, Error: e.Error, At: now})
	switch {
	case s.policy.IsCMD && (!e.Temporary || s.policy.SpawnRetry == 0 || m.phase != phaseRunning):
		m.cmdExitCode = &e.Code
		m.setState(now, s, Failed, time.Time{}, e.Error)
	case s.want == WantDown, s.policy.SingleRun:
		s.want = WantDown
		m.setState(now, s, Down, time.Time{}, e.Error)
	case s.policy.SpawnRetry > 0 && (s.policy.IsCMD || !e.Temporary):
		s.respawn = true
		m.setState(now, s, Backoff, now.Add(s.policy.SpawnRetry), e.Error)
	case e.Permanent, s.policy.RestartPolicy == RestartNever, s.policy.RestartPolicy == RestartOnSuccess:
		m.setState(now, s, Failed, time.Time{}, e.Error)
	default:
		next := s.limitRestarts(now, nextState{Backoff, m.afterFailure(now, s), now, e.Error})
		m.setState(now, s, next.state, next.startTime(), next.reason)
	}
	m.dropIfDown(now, s)
}

func (m *Machine) handleExited(now time.Time, s *service, e Exited) {
	if s.pid == 0 || s.pid != e.PID {
		return
	}
	if s.state == Finishing {
		s.pid = 0
		m.handleFinishExit(now, s, e.Code)
		m.endLeftovers(now, s, e.Leftover, "finish command")
		return
	}
	exit := &Exit{
		Run: s.number, PID: e.PID, Code: e.Code, Signal: e.Signal, At: now, Uptime: now.Sub(s.processSince),
		Cause: s.causeOf(e), CPU: e.CPU, MaxRSS: e.MaxRSS, Error: s.failedAnswer,
	}
	if s.policy.SingleRun {
		s.want = WantDown
	}
	s.succeeded = s.requestedCause == "" && s.policy.success(e.Code) && e.Signal == 0
	s.next = s.limitRestarts(now, m.afterExit(now, s, exit))
	s.pid, s.paused, s.processSince, s.ready, s.readySince = 0, false, now, false, time.Time{}
	m.recordExit(now, s, exit)
	if e.MaybeMembers != "" && !s.policy.LeaveDescendants {
		hides := "process " + e.MaybeMembers + " hides which service it is of, so hinit does not end it; it may be of this one"
		s.next.reason += "; " + hides
		m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: hides}})
	}
	if s.policy.IsCMD {
		code := e.Code
		if e.Signal != 0 {
			code = 128 + e.Signal
		}
		if exit.Cause == CauseShutdown && e.Signal == s.policy.StopSignal {
			code = m.exitCode // the CMD obeyed the stop signal, so the container ends with the code of the Shutdown event
		}
		m.cmdExitCode = &code
	}
	m.endLeftovers(now, s, e.Leftover, "main process")
}

// endLeftovers sends SIGTERM to the descendants that outlive a process of the service, and sets the deadline for SIGKILL. dead
// names the ended process in the reason of the state. If leftover is false, endLeftovers calls afterLeftovers at once.
func (m *Machine) endLeftovers(now time.Time, s *service, leftover bool, dead string) {
	s.leftover = leftover && !s.policy.LeaveDescendants
	if !s.leftover {
		m.afterLeftovers(now, s)
		return
	}
	if s.state == Killing {
		m.kill(now, s, dead+" is gone, what it left behind is killed")
		return
	}
	deadline := m.withinBudget(s, now.Add(leftoverGrace))
	if s.state == Stopping && !s.deadline.IsZero() && s.deadline.Before(deadline) {
		deadline = s.deadline
	}
	m.setState(now, s, Stopping, deadline, dead+" is gone, ending what it left behind")
	m.emit(Signal{s.name, s.liveRun(), sigTerm, ScopeTree, false})
}

// afterLeftovers continues after the last descendant of the run or of its finish command has ended. It waits for a living stop
// command, then starts the finish command. A service without a finish command, or with one that has run, enters its next state.
// The same happens when the time of the shutdown is over.
func (m *Machine) afterLeftovers(now time.Time, s *service) {
	if s.stopCommand.run != 0 {
		m.awaitStopCommand(now, s)
		return
	}
	if !s.policy.RunsFinish || s.finishRun != 0 || m.phase != phaseRunning && !now.Before(m.killAt) {
		m.enterNextState(now, s)
		return
	}
	m.lastRun++
	s.finishRun, s.killProgress.kills = m.lastRun, 0
	m.setState(now, s, Finishing, m.deadlineIn(now, s, s.policy.FinishTimeout, s.policy.FinishTimeout <= 0), describeExit(s.lastExit))
	m.emit(SpawnFinish{s.name, s.finishRun, *s.lastExit})
}

// handleFinishExit handles the exit code of a finish command; -1 if the command could not run. The restart delay begins now. A
// code in Policy.PermanentFinishCodes keeps the service down, unless an operator requested a start after the end of the main
// process.
func (m *Machine) handleFinishExit(now time.Time, s *service, code int) {
	s.next.delayStart = now
	if slices.Contains(s.policy.PermanentFinishCodes, code) && !s.restartAfterRun {
		s.want, s.staysDown = WantDown, true
		s.next = nextState{state: Down, reason: "its finish command says not to start it again (code " + strconv.Itoa(code) + ")"}
	}
}

// afterExit returns the state that follows an exit, and updates the failure counters. The service enters the state later, after
// the end of its descendants and finish command.
func (m *Machine) afterExit(now time.Time, s *service, exit *Exit) nextState {
	reason := describeExit(exit)
	switch {
	case s.requestedCause != "" && s.requestedCause != CauseHealth:
		return nextState{state: Down, reason: reasonEndedAsRequested}
	case s.policy.IsCMD, s.want == WantDown, m.phase != phaseRunning:
		return nextState{state: Down, reason: reason}
	}
	if s.parkAfterRun {
		return nextState{state: Parked, reason: reason}
	}
	if s.policy.RestartPolicy == RestartNever {
		next, _ := s.stateWithoutRestart(exit, reason)
		return next
	}
	s.respawn = true
	healthy := exit.Uptime >= s.policy.ResetAfter
	if healthy {
		s.forgetFailures()
	}
	if s.policy.ReadyRestart > 0 && s.ready && now.Sub(s.readySince) >= s.policy.ReadyRestart {
		return nextState{state: Starting, reason: reason + " after it had been ready"}
	}
	// The process chose its exit code itself. After a signal or a failed check, the code means nothing.
	own := exit.Signal == 0 && exit.Cause != CauseHealth
	if own && slices.Contains(s.policy.ParkCodes, exit.Code) {
		return nextState{state: Parked, reason: reason}
	}
	if own && slices.Contains(s.policy.NoDelayCodes, exit.Code) {
		s.quickRestarts++
		if exit.Uptime >= s.policy.Backoff.Initial {
			s.quickRestarts = 0
		}
		if s.quickRestarts <= maxQuickRestarts {
			return nextState{state: Starting, reason: reason + ", asks to be started again"}
		}
		return nextState{Backoff, s.policy.Backoff.Delay(1, m.random()), now, reason + " too soon, too often"}
	}
	if next, ok := s.stateWithoutRestart(exit, reason); ok {
		return next
	}
	// The first crash after a long run gets no restart delay. An exit with code 0 gets a delay, because another instance may
	// have taken over. hinit learns that from a file a little later, and then parks the service.
	if healthy && s.policy.ResetAfter > 0 && exit.Cause != CauseClean {
		return nextState{state: Starting, reason: reason + " after a healthy life"}
	}
	if s.ready && s.policy.ReportsReadiness && s.policy.ReadyRestart == 0 && s.failures == 0 && exit.Cause != CauseClean && exit.Cause != CauseOperator && exit.Cause != CauseHealth {
		m.countFailure(now, s) // a second crash gets a restart delay
		return nextState{state: Starting, reason: reason + " after it had become ready"}
	}
	if exit.Cause == CauseOperator { // an operator's signal ended the process, so the exit is no failure
		return nextState{Backoff, s.policy.Backoff.Delay(1, m.random()), now, reason + " from an operator"}
	}
	return nextState{Backoff, m.afterFailure(now, s), now, reason}
}

// handleInputsChanged starts a parked service after its input files have changed. If the service parked after a short run, it
// may have changed the files itself. The change then counts as a fast exit, and the rest of the restart delay applies.
func (m *Machine) handleInputsChanged(now time.Time, s *service) {
	const reason = "inputs changed"
	quiet := now.Sub(s.since)
	if quiet >= s.policy.ResetAfter {
		s.forgetFailures()
	}
	delay := s.policy.Backoff.Delay(s.failures+1, m.random())
	if s.lastExit == nil || s.lastExit.Cause == CauseReplaced || s.lastExit.Uptime >= s.policy.ResetAfter || quiet >= delay {
		m.startOrWait(now, s, reason)
		return
	}
	m.countFailure(now, s)
	m.setState(now, s, Backoff, s.since.Add(delay), reason+" right after it had "+describeExit(s.lastExit))
}

// afterFailure counts a fast exit, and returns the restart delay.
func (m *Machine) afterFailure(now time.Time, s *service) time.Duration {
	m.countFailure(now, s)
	return s.policy.Backoff.Delay(s.failures, m.random())
}

// countFailure counts a fast exit, and finds out whether the service is in a crash loop.
func (m *Machine) countFailure(now time.Time, s *service) {
	s.failures++
	s.respawn = true
	s.recentFastExits = cloneWithout(s.recentFastExits, func(t time.Time) bool { return now.Sub(t) >= s.policy.CrashLoopWindow })
	if s.policy.CrashLoopExits > 0 {
		s.recentFastExits = append(s.recentFastExits, now)
		if len(s.recentFastExits) >= s.policy.CrashLoopExits {
			s.inCrashLoop = true
			s.recentFastExits = nil
		}
	}
}

func (m *Machine) random() float64 {
	if m.Random == nil {
		return 0.5
	}
	return m.Random()
}

// maxErrorText is the maximum length in bytes of an error in the history and in exit records. An error may contain file names,
// and programs in the container choose these names.
const maxErrorText = 1 << 10

// ShortenText cuts a text to maxErrorText bytes, for the history.
func ShortenText(text string) string {
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "…"
	}
	return text
}

// recordExit stores an exit as the service's last exit, counts it, and adds it to the history.
func (m *Machine) recordExit(now time.Time, s *service, exit *Exit) {
	s.lastExit = exit
	s.exits = s.exits.plus(exit.Cause, 1)
	m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: describeExit(exit), PID: exit.PID, Exit: exit}})
	m.markChanged(s)
}

// describeExit says in words how a run ended: by a failed start, a failed check, a signal or an exit code.
func describeExit(e *Exit) string {
	switch {
	case e.Cause == CauseSpawn:
		return e.Error
	case e.Cause == CauseHealth:
		return ReasonUnhealthy + ": " + e.Error
	case e.Signal != 0:
		return "ended by signal " + strconv.Itoa(e.Signal)
	}
	return "exited with code " + strconv.Itoa(e.Code)
}

func (m *Machine) handleRunEnded(now time.Time, s *service, e RunEnded) {
	switch only := s.stopCommandAlone(); {
	case s.stopCommand.run != 0 && s.stopCommand.run == e.Run:
		s.stopCommand.run = 0
		if only {
			m.afterLeftovers(now, s)
		}
	case s.liveRun() == e.Run && s.pid == 0 && s.leftover:
		s.leftover = false
		m.afterLeftovers(now, s)
	}
}

// enterNextState ends a run after all its processes and its finish command have ended. The service enters the state that
// afterExit or handleFinishExit chose, unless a later command or a shutdown overrides it.
func (m *Machine) enterNextState(now time.Time, s *service) {
	next := s.next
	s.next, s.readySince = nextState{}, now
	switch {
	case s.beingRemoved || m.phase != phaseRunning || s.policy.IsCMD:
		m.setState(now, s, Down, time.Time{}, "ended")
	case s.want == WantDown && next.state == Down:
		m.setState(now, s, Down, time.Time{}, next.reason)
		if s.policy.IsConfiguredTask && s.succeeded {
			m.propagateRestart(now, s)
		}
	case s.want == WantDown:
		m.setState(now, s, Down, time.Time{}, reasonEndedAsRequested)
	case s.restartAfterRun:
		m.startOrWait(now, s, "started again as asked")
	case next.state == Starting, next.state == Backoff && !next.startTime().After(now):
		m.startOrWait(now, s, next.reason)
	case next.state == Down: // a stop or a finish command chose down, but a later command wants the service up
		m.startOrWait(now, s, "wanted up")
	default:
		m.setState(now, s, next.state, next.startTime(), next.reason)
	}
	m.dropIfDown(now, s)
}

// dropIfDown forgets a service that is being removed, once it is down.
func (m *Machine) dropIfDown(now time.Time, s *service) {
	if s.beingRemoved && s.state == Down {
		delete(m.services, s.name)
		m.removeFromDependants(s)
		m.stepResult.changed = append(m.stepResult.changed, s.name)
		m.inOrder = cloneWithout(m.inOrder, func(o *service) bool { return o == s })
		m.emit(AppendRecord{Record{At: now, Service: s.name, From: Down, To: Down, Reason: "removed", Dropped: true}})
	}
}

// causesByHinit lists the causes of exits that hinit brought about. They are certain, so no CorrectCause event replaces them.
var causesByHinit = []Cause{CauseOperator, CauseShutdown, CauseShed, CauseQuota, CauseLease}

// parkByOutput parks a service in backoff if its last lines of output say that a restart would not help (Policy.ParkOnOutput).
func (m *Machine) parkByOutput(now time.Time, s *service) {
	if s.policy.ParkOnOutput == "" || s.state != Backoff || s.lastExit.Code < 1 {
		return
	}
	for _, line := range s.lastExit.Tail {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, s.policy.ParkOnOutput) {
			s.forgetFailures()
			m.setState(now, s, Parked, time.Time{}, line)
			return
		}
	}
}

func (m *Machine) correctCause(now time.Time, s *service, e CorrectCause) {
	if s.lastExit == nil || s.lastExit.Run != e.Run || slices.Contains(causesByHinit, s.lastExit.Cause) || s.lastExit.Cause == e.Cause {
		return
	}
	last := *s.lastExit
	last.Cause = e.Cause
	s.exits = s.exits.plus(s.lastExit.Cause, -1).plus(e.Cause, 1)
	s.lastExit = &last
	why := ", explained: " + string(e.Cause)
	if e.Cause == CauseOperator {
		why = " " + SuffixProfileGone
	}
	m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: describeExit(&last) + why, PID: last.PID, Exit: &last}})
	m.markChanged(s)
	if e.Cause != CauseReplaced || s.want != WantUp {
		return
	}
	switch {
	case s.state == Backoff:
		s.forgetFailures()
		m.setState(now, s, Parked, time.Time{}, ReasonReplaced)
	case (s.leftover || s.stopCommandAlone() || s.state == Finishing) && !s.restartAfterRun:
		s.next = nextState{state: Parked, reason: ReasonReplaced}
	}
}
