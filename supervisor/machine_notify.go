package supervisor

import "time"

// sd_notify(3) messages from the processes of a service.

// mostExtended limits how long a service may delay its own end with EXTEND_TIMEOUT_USEC, as a multiple of its grace period.
const mostExtended = 10

// reasonEnding is the reason of the state stopping after a service has sent STOPPING=1.
const reasonEnding = "it says that it is stopping"

// handleNotified handles a message from the current run of a service. Messages from other runs, or after the end of the main
// process, are ignored.
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

// markOverdue marks a service as unhealthy if it has announced its own end with STOPPING=1, but is still alive after the grace
// period.
func (m *Machine) markOverdue(s *service) {
	if s.requestedCause == "" && s.pid != 0 && m.phase == running {
		s.requestedCause, s.answer = CauseHealth, "it said that it is stopping, and is still alive after the grace"
	}
}
