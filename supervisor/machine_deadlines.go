package supervisor

import "time"

// This file finds the next deadline of any service, and acts on deadlines that have passed.

// Deadline returns the time at which Step next needs a Tick event. The result is false if the machine has no deadline. The time
// may be too early, and the Tick then changes nothing.
func (m *Machine) Deadline() (time.Time, bool) {
	if m.phase == phaseFinished {
		return time.Time{}, false
	}
	first := earlier(m.stepResult.wakeAt, m.forcedEnd)
	if m.phase == phaseSweeping {
		first = earlier(first, m.killAt)
	}
	if len(m.queue) > 0 && m.phase == phaseRunning {
		for _, s := range m.inTurn {
			first = earlier(first, s.since.Add(m.turnLimit()))
		}
	}
	return first, !first.IsZero()
}

// earlier returns the earlier of two times. Zero stands for never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// handleTick acts on each deadline that has passed, and finds the next deadline.
func (m *Machine) handleTick(now time.Time) {
	m.stepResult.wakeAt = time.Time{}
	for _, s := range m.inOrder {
		if s.deadline.IsZero() || now.Before(s.deadline) {
			m.stepResult.wakeAt = earlier(m.stepResult.wakeAt, s.deadline)
			continue
		}
		m.saveForUndo(s)
		switch s.state {
		case Backoff:
			m.startOrWait(now, s, "restart after a delay")
		case Stopping:
			if s.requestedCause == "" && s.pid != 0 && m.phase == phaseRunning { // the service itself has sent STOPPING=1
				s.requestedCause, s.failedAnswer = CauseHealth, "it said that it is stopping, and is still alive after the grace"
			}
			m.kill(now, s, "still alive after the grace")
		case Killing:
			m.kill(now, s, "still alive after SIGKILL")
		case Finishing:
			m.kill(now, s, "its finish command takes too long")
		case Up:
			if m.phase != phaseRunning {
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
