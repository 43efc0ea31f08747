package supervisor

import "time"

// This file finds the next deadline of any service, and acts on deadlines that have passed.

// Deadline returns the time at which Step next needs a Tick event. The result is false if nothing is due.
func (m *Machine) Deadline() (time.Time, bool) {
	var first time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	switch m.phase {
	case running:
	case stopping:
		earlier(m.hardEnd)
	case sweeping:
		earlier(m.killAt)
		earlier(m.hardEnd)
	case finished:
		return time.Time{}, false
	}
	for _, s := range m.order {
		earlier(s.deadline)
	}
	if len(m.queue) > 0 && m.phase == running {
		for _, s := range m.starting {
			earlier(s.since.Add(m.turnLimit()))
		}
	}
	return first, !first.IsZero()
}

// handleTick acts on each deadline that has passed.
func (m *Machine) handleTick(now time.Time) {
	for _, s := range m.order {
		if s.deadline.IsZero() || now.Before(s.deadline) {
			continue
		}
		switch s.state {
		case Backoff:
			m.startOrWait(now, s, "restart after a delay")
		case Stopping:
			m.markOverdue(s)
			m.kill(now, s, "still alive after the grace")
		case Killing:
			m.kill(now, s, "still alive after SIGKILL")
		case Finishing:
			m.kill(now, s, "its finish command takes too long")
		case Up:
			if m.phase != running { // a shutdown lets loggers and needed services run until this deadline
				m.requestEnd(now, s, ReasonShutdown)
				continue
			}
			s.forgetFailures() // the run has lasted for Policy.ResetAfter
			s.deadline = time.Time{}
			m.markChanged(s)
		case Down, Waiting, Starting, Parked, Failed:
			s.deadline = time.Time{}
		}
	}
}
