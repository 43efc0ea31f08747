package supervisor

import (
	"cmp"
	"strconv"
	"time"
)

// This file handles commands to a service, from operators or from hinit itself, and sends the signals that these
// commands cause.

func (m *Machine) start(now time.Time, s *service) {
	if m.phase != running || s.removing { // only an Add event makes a removed service wanted again
		return
	}
	held := m.shortage.held[s.name] != ""
	m.setHold(s.name, "")
	s.want, s.once, s.respawns = WantUp, false, nil
	switch s.state {
	case Down, Backoff, Parked, Failed:
		s.forgetFailures()
		m.startOrWait(now, s, "operator asked to start")
	case Stopping, Killing, Finishing: // the service starts when the old run and its finish command have ended
		s.restartAfterRun = true
		m.markChanged(s)
	case Up: // the service runs already, but its earlier failures are forgotten
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
	if s.state != Up || m.phase != running {
		m.start(now, s)
		return
	}
	m.wantUpAgain(s)
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
		m.noteCause(s)
		if s.state == Stopping && s.policy.KillNever { // no deadline ends this state, so repeat the stop signal
			m.sendStop(now, s)
		}
	case Down, Waiting, Starting, Finishing, Backoff, Parked, Failed:
	}
}

// setWantDown sets the desired state to down without ending a running process.
func (m *Machine) setWantDown(now time.Time, s *service, reason string) {
	s.want, s.restartAfterRun, s.once, s.respawn = WantDown, false, false, false
	m.setHold(s.name, "")
	switch s.state {
	case Waiting, Backoff, Parked, Failed:
		m.setState(now, s, Down, time.Time{}, reason)
	case Down, Starting, Up, Stopping, Killing, Finishing:
		m.markChanged(s)
	}
}

// startOnce starts a service for a single run. After the run the service stays down.
func (m *Machine) startOnce(now time.Time, s *service) {
	if m.phase != running || s.removing {
		return
	}
	s.want, s.restartAfterRun, s.respawns = WantDown, false, nil
	switch s.state {
	case Down, Waiting, Backoff, Parked, Failed:
		s.forgetFailures()
		s.once = true
		m.markChanged(s)
		m.startOrWait(now, s, "operator asked for one run")
	case Starting, Up, Stopping, Killing, Finishing:
		m.markChanged(s)
	}
}

// evict kills the processes of a service without a grace period, and forgets the service after they have ended.
func (m *Machine) evict(now time.Time, s *service, e Evict) {
	if s == nil || s.policy.IsCMD {
		return
	}
	s.removing = true
	m.setWantDown(now, s, e.Reason)
	if s.hasProcess() {
		s.stopCommand.end = now
		s.requestedCause = cmp.Or(s.requestedCause, e.Cause)
		m.kill(now, s, e.Reason)
	}
	m.dropIfDown(now, s)
}

// setPaused stops the processes of a service with SIGSTOP, or continues them with SIGCONT.
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

// sendOperatorSignal sends an operator's signal to a service. Signal 0 stands for the stop signal of the service.
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

// noteCause records the cause for which hinit ends a run: an operator, or the shutdown. A cause that is already recorded is kept.
func (m *Machine) noteCause(s *service) {
	switch {
	case s.requestedCause != "":
	case m.phase != running:
		s.requestedCause = CauseShutdown
	default:
		s.requestedCause = CauseOperator
	}
}

// requestEnd begins to stop the running process of a service.
func (m *Machine) requestEnd(now time.Time, s *service, reason string) {
	m.noteCause(s)
	m.setState(now, s, Stopping, m.deadlineIn(now, s, s.policy.Grace, s.policy.KillNever), reason)
	m.sendStop(now, s)
}

// sendStop runs the stop command, or sends the stop signal if the service has no stop command. It also sends SIGCONT, so that a
// process that is stopped (SIGSTOP) can react.
func (m *Machine) sendStop(now time.Time, s *service) {
	s.paused = false
	if len(s.policy.StopCommand) > 0 {
		m.emit(Signal{s.name, s.number, sigCont, ScopeMain, false})
		if s.stopCommand.run == 0 {
			m.runs++
			s.stopCommand.run, s.stopCommand.end = m.runs, m.deadlineIn(now, s, s.policy.Grace, false)
			m.emit(SpawnStop{s.name, s.stopCommand.run})
		}
		return
	}
	m.emit(Signal{s.name, s.number, s.policy.StopSignal, ScopeMain, true})
}

// handleStopCommandEnded handles the end of the stop command. If the main process is still running, it gets the stop signal.
// Processes that the stop command has left behind are killed.
func (m *Machine) handleStopCommandEnded(now time.Time, s *service, e StopCommandEnded) {
	if s.stopCommand.run == 0 || s.stopCommand.run != e.Run {
		return
	}
	if e.Fault != "" {
		m.emit(Note{Record{At: now, Service: s.name, Reason: "its stop command " + e.Fault}})
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
		m.leftoversGone(now, s)
	}
}

// awaitStopCommand handles a service whose main process is gone while the stop command or its descendants are alive. The
// stop command and its descendants may run until the grace period of the stop is over. Then the machine kills them.
func (m *Machine) awaitStopCommand(now time.Time, s *service) {
	s.killProgress = killProgress{}
	if end := m.withinBudget(s, s.stopCommand.end); now.Before(end) {
		m.setState(now, s, Stopping, end, "it is gone, its stop command still runs")
		return
	}
	m.kill(now, s, "it is gone, its stop command or what that left is killed")
}

// deadlineIn returns the time now plus d. If the parameter never is true, it returns the zero time, which means no deadline.
// During a shutdown the deadline is no later than the end of the shutdown's budget.
func (m *Machine) deadlineIn(now time.Time, s *service, d time.Duration, never bool) time.Time {
	deadline := now.Add(d)
	if never {
		deadline = time.Time{}
	}
	return m.withinBudget(s, deadline)
}

// withinBudget limits a deadline to the budget of a shutdown, if one has begun. Draining services (loggers) have a later limit,
// so they are killed last.
func (m *Machine) withinBudget(s *service, deadline time.Time) time.Time {
	if m.phase == running {
		return deadline
	}
	last := m.killAt
	if s.policy.DrainsInput {
		last = last.Add(max(m.hardEnd.Sub(last), 0) / 2)
	}
	if deadline.IsZero() || last.Before(deadline) {
		return last
	}
	return deadline
}

// kill sends SIGKILL to the processes that the policy of the service selects (at shutdown: to the whole tree). It also sets the
// time of the next SIGKILL, because the machine repeats kill until the processes are gone.
func (m *Machine) kill(now time.Time, s *service, reason string) {
	state := Finishing
	if s.state != Finishing {
		state = Killing
		if s.pid != 0 {
			m.noteCause(s)
		}
	}
	if s.killProgress.treeGrows {
		reason = strconv.Itoa(s.killProgress.deaths) + " processes of it have ended and others take their place; only the end of the container ends them"
	}
	doublings := max(0, s.killProgress.kills-firstKillCount+1)
	again := min(firstKillInterval<<min(doublings, 10), maxKillInterval) // the limit keeps the shift from an overflow
	s.killProgress.kills++
	if s.state == state && s.reason == reason && again < maxKillInterval {
		s.deadline = now.Add(again) // the history already has the first SIGKILL
	} else {
		m.setState(now, s, state, now.Add(again), reason)
	}
	scope := s.policy.KillScope
	if s.pid == 0 || m.phase != running {
		scope = ScopeTree
	}
	m.emit(Signal{s.name, s.liveRun(), sigKill, scope, false})
	if s.stopCommand.run != 0 && s.pid != 0 { // the main process is being killed, so its stop command gets no more time
		m.emit(Signal{s.name, s.stopCommand.run, sigKill, ScopeTree, false})
	}
}
