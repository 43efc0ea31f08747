package supervisor

import (
	"cmp"
	"strconv"
	"time"
)

// This file handles commands to a service, from an operator or from hinit itself, and sends the signals that they cause.

// Signal numbers, see signal(7). The machine must not import syscall. A test compares them with the operating system's numbers.
const (
	sigHup  = 1
	sigInt  = 2
	sigQuit = 3
	sigKill = 9
	sigTerm = 15
	sigCont = 18
	sigStop = 19
)

// signalsThatNeedCont lists the signals that ask a process to end or to reload. A process that is stopped (SIGSTOP) can't
// handle them, so the machine adds SIGCONT.
var signalsThatNeedCont = []int{sigHup, sigInt, sigQuit, sigTerm}

func (m *Machine) start(now time.Time, s *service) {
	if m.phase != phaseRunning || s.beingRemoved {
		return
	}
	held := m.shortage.held[s.name] != ""
	m.setHold(s.name, "")
	s.want, s.singleRun, s.respawns = WantUp, false, nil
	switch s.state {
	case Down, Backoff, Parked, Failed:
		s.forgetFailures()
		m.startOrWait(now, s, "operator asked to start")
	case Stopping, Killing, Finishing: // the service starts when the old run and its finish command have ended
		s.restartAfterRun = true
		m.markChanged(s)
	case Up: // the running service continues, and hinit forgets earlier failures
		s.forgetFailures()
		s.deadline = time.Time{}
		m.markChanged(s)
	case Waiting, Starting:
		m.markChanged(s)
		if held && s.state == Waiting && len(s.needs) == 0 {
			m.startOrWait(now, s, "operator asked to start")
		}
	}
}

func (m *Machine) restart(now time.Time, s *service) {
	if s.state != Up || m.phase != phaseRunning {
		m.start(now, s)
		return
	}
	m.setWantUp(s)
	s.restartAfterRun = true
	m.requestEnd(now, s, "operator asked to restart")
}

func (m *Machine) stop(now time.Time, s *service, reason string) {
	m.setWantDown(now, s, reason)
	switch s.state {
	case Up:
		m.requestEnd(now, s, reason)
	case Stopping, Killing:
		if s.pid == 0 {
			return
		}
		m.recordCause(s)
		if s.state == Stopping && s.policy.KillNever {
			m.sendStop(now, s)
		}
	case Down, Waiting, Starting, Finishing, Backoff, Parked, Failed:
	}
}

// setWantDown sets the desired state to down. A running process continues.
func (m *Machine) setWantDown(now time.Time, s *service, reason string) {
	s.want, s.restartAfterRun, s.singleRun, s.respawn = WantDown, false, false, false
	m.setHold(s.name, "")
	switch s.state {
	case Waiting, Backoff, Parked, Failed:
		m.setState(now, s, Down, time.Time{}, reason)
	case Down, Starting, Up, Stopping, Killing, Finishing:
		m.markChanged(s)
	}
}

// startOnce starts a service for a single run, after which it stays down.
func (m *Machine) startOnce(now time.Time, s *service) {
	if m.phase != phaseRunning || s.beingRemoved {
		return
	}
	s.want, s.restartAfterRun, s.respawns = WantDown, false, nil
	switch s.state {
	case Down, Waiting, Backoff, Parked, Failed:
		s.forgetFailures()
		s.singleRun = true
		m.markChanged(s)
		m.startOrWait(now, s, "operator asked for one run")
	case Starting, Up, Stopping, Killing, Finishing:
		m.markChanged(s)
	}
}

// evict kills all processes of a service at once, and forgets the service after their end. It spares the CMD.
func (m *Machine) evict(now time.Time, s *service, e Evict) {
	if s == nil || s.policy.IsCMD {
		return
	}
	m.saveForUndo(s)
	s.beingRemoved = true
	m.setWantDown(now, s, e.Reason)
	if s.hasProcess() {
		s.stopCommand.end = now
		s.requestedCause = cmp.Or(s.requestedCause, e.Cause)
		m.kill(now, s, e.Reason)
	}
	m.dropIfDown(now, s)
}

func (m *Machine) setPaused(s *service, signal int, group bool) {
	if !s.isRunning() {
		return
	}
	m.sendSignal(s, signal, group)
	if paused := signal == sigStop; s.paused != paused {
		s.paused = paused
		m.markChanged(s)
	}
}

// sendOperatorSignal sends an operator's signal to a service. Signal 0 stands for the stop signal of its policy.
func (m *Machine) sendOperatorSignal(s *service, signal int, group bool) {
	if !s.isRunning() {
		return
	}
	s.operatorSignal = cmp.Or(signal, s.policy.StopSignal)
	m.sendSignal(s, s.operatorSignal, group)
}

func (m *Machine) sendSignal(s *service, signal int, group bool) {
	scope := ScopeMain
	if group {
		scope = ScopeGroup
	}
	m.emit(Signal{s.name, s.number, signal, scope, false})
}

// recordCause records why hinit is ending a run: shutdown or operator. The first recorded cause is kept.
func (m *Machine) recordCause(s *service) {
	switch {
	case s.requestedCause != "":
	case m.phase != phaseRunning:
		s.requestedCause = CauseShutdown
	default:
		s.requestedCause = CauseOperator
	}
}

// requestEnd asks the running process of a service to end, and sets the deadline for SIGKILL.
func (m *Machine) requestEnd(now time.Time, s *service, reason string) {
	m.recordCause(s)
	m.setState(now, s, Stopping, m.deadlineIn(now, s, s.policy.Grace, s.policy.KillNever), reason)
	m.sendStop(now, s)
}

// sendStop runs the stop command, or sends the stop signal if the service has none. It also sends SIGCONT, because a process
// that is stopped (SIGSTOP) would not react.
func (m *Machine) sendStop(now time.Time, s *service) {
	s.paused = false
	if len(s.policy.StopCommand) > 0 {
		m.emit(Signal{s.name, s.number, sigCont, ScopeMain, false})
		if s.stopCommand.run == 0 {
			m.lastRun++
			s.stopCommand.run, s.stopCommand.end = m.lastRun, m.deadlineIn(now, s, s.policy.Grace, false)
			m.emit(SpawnStop{s.name, s.stopCommand.run})
		}
		return
	}
	m.emit(Signal{s.name, s.number, s.policy.StopSignal, ScopeMain, true})
}

// handleStopCommandEnded sends the stop signal to the main process after the stop command has ended. It kills the remaining
// descendants of the command.
func (m *Machine) handleStopCommandEnded(now time.Time, s *service, e StopCommandEnded) {
	if s.stopCommand.run == 0 || s.stopCommand.run != e.Run {
		return
	}
	if e.Fault != "" {
		m.emit(AppendRecord{Record{At: now, Service: s.name, Reason: "its stop command " + e.Fault}})
	}
	if s.state == Stopping && s.isRunning() {
		m.emit(Signal{s.name, s.number, s.policy.StopSignal, ScopeMain, true})
	}
	only := s.stopCommandAlone()
	s.stopCommand.end = now
	switch {
	case !e.Leftover:
		s.stopCommand.run = 0
	case !only:
		m.emit(Signal{s.name, s.stopCommand.run, sigKill, ScopeTree, false})
	}
	if only {
		m.afterLeftovers(now, s)
	}
}

// awaitStopCommand waits for a stop command that outlives the main process. When the grace period of the stop is over, the
// machine kills the command and its descendants.
func (m *Machine) awaitStopCommand(now time.Time, s *service) {
	s.killProgress = killProgress{}
	if end := m.withinBudget(s, s.stopCommand.end); now.Before(end) {
		m.setState(now, s, Stopping, end, "it is gone, its stop command still runs")
		return
	}
	m.kill(now, s, "it is gone, its stop command or what that left is killed")
}

// deadlineIn returns now plus d, or no deadline (zero) if never is true. The shutdown budget limits the result.
func (m *Machine) deadlineIn(now time.Time, s *service, d time.Duration, never bool) time.Time {
	deadline := now.Add(d)
	if never {
		deadline = time.Time{}
	}
	return m.withinBudget(s, deadline)
}

// withinBudget limits a deadline to the budget of the current shutdown, if any. Loggers drain their input, so their limit is
// later.
func (m *Machine) withinBudget(s *service, deadline time.Time) time.Time {
	if m.phase == phaseRunning {
		return deadline
	}
	last := m.killAt
	if s.policy.DrainsInput {
		last = last.Add(max(m.forcedEnd.Sub(last), 0) / 2)
	}
	if deadline.IsZero() || last.Before(deadline) {
		return last
	}
	return deadline
}

// kill sends SIGKILL to the processes that Policy.KillScope selects. During a shutdown, or after the main process has ended, it
// kills the whole tree. It sets the deadline for the next SIGKILL, because the machine repeats kill until no process is left.
func (m *Machine) kill(now time.Time, s *service, reason string) {
	state := Finishing
	if s.state != Finishing {
		state = Killing
		if s.pid != 0 {
			m.recordCause(s)
		}
	}
	if s.killProgress.treeGrows {
		reason = strconv.Itoa(s.killProgress.deaths) + " processes of it have ended and others take their place; only the end of the container ends them"
	}
	doublings := max(0, s.killProgress.kills-firstKillCount+1)
	again := min(firstKillInterval<<min(doublings, 10), maxKillInterval) // the limit of 10 prevents an overflow
	s.killProgress.kills++
	if s.state == state && s.reason == reason && again < maxKillInterval {
		s.deadline = now.Add(again) // setState would add a record to the history for each repeated SIGKILL
	} else {
		m.setState(now, s, state, now.Add(again), reason)
	}
	scope := s.policy.KillScope
	if s.pid == 0 || m.phase != phaseRunning {
		scope = ScopeTree
	}
	m.emit(Signal{s.name, s.liveRun(), sigKill, scope, false})
	if s.stopCommand.run != 0 && s.pid != 0 { // the main process is being killed, so the stop command gets no more time either
		m.emit(Signal{s.name, s.stopCommand.run, sigKill, ScopeTree, false})
	}
}
