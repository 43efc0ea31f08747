package supervisor

import "time"

// The messages of a service's processes by sd_notify(3).

// mostExtended bounds how far a service puts off its own end: so many times its grace.
const mostExtended = 10

// reasonEnding is the reason of a service that says STOPPING=1.
const reasonEnding = "it says that it is stopping"

// told takes what a run says. Only a run that is alive can say something.
func (m *Machine) told(now time.Time, s *service, e Told) {
	if s.id != e.Run || !s.runs() {
		return
	}
	if e.HasStatus && s.status != e.Status {
		s.status = e.Status
		m.changed(s)
	}
	if e.Ready && s.state == Up {
		s.own.ready = true
		m.weigh(now, s)
	}
	if e.Stopping && s.state == Up && m.phase == running && !s.policy.Once {
		// It ends by itself: no signal is sent, and how it ends decides what follows.
		s.paused = false
		m.set(now, s, Stopping, m.within(now, s, s.policy.Grace, s.policy.KillNever), reasonEnding)
	}
	if e.Extend > 0 && s.state == Stopping && !s.deadline.IsZero() {
		to, last := now.Add(e.Extend), s.since.Add(mostExtended*s.policy.Grace)
		if to.After(last) {
			to = last
		}
		if to.After(s.deadline) {
			s.deadline = m.hurried(s, to)
		}
	}
}

// overdue notes that a service which said that it is stopping has not ended in time.
func (m *Machine) overdue(s *service) {
	if s.asked == "" && s.pid != 0 && m.phase == running {
		s.asked, s.answer = CauseHealth, "it said that it is stopping, and is still alive after the grace"
	}
}
