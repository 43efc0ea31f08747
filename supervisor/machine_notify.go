package supervisor

import "time"

// Messages of the processes of a service by sd_notify(3).

// mostExtended limits how long a service may delay its own end by EXTEND_TIMEOUT_USEC, as a multiple of its grace.
const mostExtended = 10

// reasonEnding is the reason of the state stopping after a service has sent STOPPING=1.
const reasonEnding = "it says that it is stopping"

// handleNotified handles a message of a living run, and ignores messages of all others.
func (m *Machine) handleNotified(now time.Time, s *service, e Notified) {
	if s.id != e.Run || !s.runs() {
		return
	}
	if e.HasStatus && s.status != e.Status {
		s.status = e.Status
		m.changed(s)
	}
	if e.Ready && s.state == Up {
		s.own.ready = true
		m.updateReadiness(now, s)
	}
	if e.Stopping && s.state == Up && m.phase == running && !s.policy.Once {
		// The service ends by itself: hinit sends no signal, and the exit decides what follows.
		s.paused = false
		m.setState(now, s, Stopping, m.deadlineIn(now, s, s.policy.Grace, s.policy.KillNever), reasonEnding)
	}
	if e.Extend > 0 && s.state == Stopping && !s.deadline.IsZero() {
		to, last := now.Add(e.Extend), s.since.Add(mostExtended*s.policy.Grace)
		if to.After(last) {
			to = last
		}
		if to.After(s.deadline) {
			s.deadline = m.withinBudget(s, to)
		}
	}
}

// markOverdue marks a service as unhealthy if it has announced its end and is still alive after the grace.
func (m *Machine) markOverdue(s *service) {
	if s.requestedCause == "" && s.pid != 0 && m.phase == running {
		s.requestedCause, s.answer = CauseHealth, "it said that it is stopping, and is still alive after the grace"
	}
}
