package supervisor

import (
	"strconv"
	"time"
)

// The commands of people and of the container to a service, and the signals that follow.

func (m *Machine) start(now time.Time, s *service) {
	if m.phase != running {
		return
	}
	if s.removing { // only Add brings it back
		return
	}
	held := m.short.held[s.name] != ""
	m.setHold(s.name, "")
	s.want, s.once, s.respawns = WantUp, false, nil
	switch s.state {
	case Down, Backoff, Parked, Failed:
		s.forgive()
		m.begin(now, s, "operator asked to start")
	case Stopping, Killing, Finishing: // starts as soon as the old run is gone and finished
		s.again = true
		m.changed(s)
	case Up: // it runs already; what it did wrong before is forgotten all the same
		s.forgive()
		s.deadline = time.Time{}
		m.changed(s)
	case Waiting, Starting:
		m.changed(s)
		if held && s.state == Waiting && len(s.needs) == 0 {
			m.begin(now, s, "operator asked to start")
		}
	}
}

func (m *Machine) restart(now time.Time, s *service) {
	if s.state != Up || m.phase != running {
		m.start(now, s)
		return
	}
	m.renew(s)
	s.again = true
	m.end(now, s, "operator asked to restart")
}

func (m *Machine) stop(now time.Time, s *service, reason string) {
	m.unwant(now, s, reason)
	switch s.state {
	case Up:
		m.end(now, s, reason)
	case Stopping:
		if s.pid != 0 {
			m.ask(s)
			if s.policy.KillNever { // only another command will move it
				m.wake(now, s)
			}
		}
	case Killing:
		if s.pid != 0 {
			m.ask(s)
		}
	case Down, Waiting, Starting, Finishing, Backoff, Parked, Failed:
	}
}

// unwant is stop without ending what runs.
func (m *Machine) unwant(now time.Time, s *service, reason string) {
	s.want, s.again, s.once, s.respawn = WantDown, false, false, false
	m.setHold(s.name, "")
	switch s.state {
	case Waiting, Backoff, Parked, Failed:
		m.set(now, s, Down, time.Time{}, reason)
	case Down, Starting, Up, Stopping, Killing, Finishing:
		m.changed(s)
	}
}

// once wants a single run.
func (m *Machine) once(now time.Time, s *service) {
	if m.phase != running || s.removing {
		return
	}
	s.want, s.again, s.respawns = WantDown, false, nil
	switch s.state {
	case Down, Waiting, Backoff, Parked, Failed:
		s.forgive()
		s.once = true
		m.changed(s)
		m.begin(now, s, "operator asked for one run")
	case Starting, Up, Stopping, Killing, Finishing:
		m.changed(s)
	}
}

// evict kills what runs of a service, without a grace, and forgets the service once nothing does.
func (m *Machine) evict(now time.Time, s *service, e Evict) {
	if s == nil || s.policy.Once {
		return
	}
	s.removing = true
	m.unwant(now, s, e.Reason)
	if m.phase == running && s.held() {
		s.command.end = now
		if s.asked == "" {
			s.asked = e.Cause
		}
		m.kill(now, s, e.Reason)
	}
	m.dropIfDown(now, s)
}

func (m *Machine) pause(s *service, group, paused bool) {
	if !s.runs() {
		return
	}
	signal := sigCont
	if paused {
		signal = sigStop
	}
	m.signal(s, signal, group)
	if s.paused != paused {
		s.paused = paused
		m.changed(s)
	}
}

// send passes an operator's signal on.
func (m *Machine) send(s *service, signal int, group bool) {
	if !s.runs() {
		return
	}
	if signal == 0 {
		signal = s.policy.StopSignal
	}
	s.sent = signal
	m.signal(s, signal, group)
}

func (m *Machine) signal(s *service, signal int, group bool) {
	scope := ScopeMain
	if group {
		scope = ScopeGroup
	}
	m.do(Signal{s.name, s.id, signal, scope, false})
}

// ask notes why the run is told to end; the first reason counts.
func (m *Machine) ask(s *service) {
	switch {
	case s.asked != "":
	case m.phase != running:
		s.asked = CauseShutdown
	default:
		s.asked = CauseOperator
	}
}

// end asks the running process to end.
func (m *Machine) end(now time.Time, s *service, reason string) {
	m.ask(s)
	m.set(now, s, Stopping, m.within(now, s, s.policy.Grace, s.policy.KillNever), reason)
	m.wake(now, s)
}

// wake runs the stop command, if there is one, or sends the stop signal so that a stopped process takes it too.
func (m *Machine) wake(now time.Time, s *service) {
	s.paused = false
	if len(s.policy.StopCommand) > 0 {
		m.do(Signal{s.name, s.id, sigCont, ScopeMain, false})
		if s.command.run == 0 {
			m.runs++
			s.command.run, s.command.end = m.runs, m.within(now, s, s.policy.Grace, false)
			m.do(SpawnStop{s.name, s.command.run})
		}
		return
	}
	m.do(Signal{s.name, s.id, s.policy.StopSignal, ScopeMain, true})
}

// commanded sends the stop signal after the stop command, which has told the process to end by its own means. Processes that the command left
// are killed.
func (m *Machine) commanded(now time.Time, s *service, e Commanded) {
	if s.command.run == 0 || s.command.run != e.Run {
		return
	}
	if e.Fault != "" {
		m.do(Note{Record{At: now, Service: s.name, Reason: "its stop command " + e.Fault}})
	}
	if s.state == Stopping && s.runs() {
		m.do(Signal{s.name, s.id, s.policy.StopSignal, ScopeMain, true})
	}
	only := s.outlived()
	s.command.end = now
	switch {
	case !e.Leftover:
		s.command.run = 0
	case !only:
		m.do(Signal{s.name, s.command.run, sigKill, ScopeTree, false})
	}
	if only {
		m.cleared(now, s)
	}
}

// outlast waits until the stop command, which is all that is left, has ended and nothing of it is alive. It has the grace of the stop.
func (m *Machine) outlast(now time.Time, s *service) {
	s.hunt = hunt{}
	if end := m.hurried(s, s.command.end); now.Before(end) {
		m.set(now, s, Stopping, end, "it is gone, its stop command still runs")
		return
	}
	m.kill(now, s, "it is gone, its stop command or what that left is killed")
}

// within returns the deadline after some time, or none at all, within the budget of a shutdown.
func (m *Machine) within(now time.Time, s *service, d time.Duration, never bool) time.Time {
	deadline := now.Add(d)
	if never {
		deadline = time.Time{}
	}
	return m.hurried(s, deadline)
}

// hurried returns a deadline within the budget of a shutdown. Draining services (loggers) are killed last.
func (m *Machine) hurried(s *service, deadline time.Time) time.Time {
	if m.phase == running {
		return deadline
	}
	last := m.killAt
	if s.policy.Drains {
		last = last.Add(max(m.hardEnd.Sub(last), 0) / 2)
	}
	if deadline.IsZero() || last.Before(deadline) {
		return last
	}
	return deadline
}

// kill sends KILL to what the policy says, or at the end of the container to all of the run, again and again until it is gone.
func (m *Machine) kill(now time.Time, s *service, reason string) {
	state := Finishing
	if s.state != Finishing {
		state = Killing
		if s.pid != 0 {
			m.ask(s)
		}
	}
	if s.hunt.reborn {
		reason = strconv.Itoa(s.hunt.deaths) + " processes of it have ended and others take their place; only the end of the container ends them"
	}
	again := min(killSoon<<min(max(0, s.hunt.kills-killSoons+1), 10), killAgain)
	s.hunt.kills++
	if s.state == state && s.reason == reason && again < killAgain {
		s.deadline = now.Add(again) // that it is repeated was told
	} else {
		m.set(now, s, state, now.Add(again), reason)
	}
	scope := s.policy.Kill
	if s.pid == 0 || m.phase != running {
		scope = ScopeTree
	}
	m.do(Signal{s.name, s.live(), sigKill, scope, false})
	if s.command.run != 0 && s.pid != 0 { // the grace is over for both
		m.do(Signal{s.name, s.command.run, sigKill, ScopeTree, false})
	}
}
