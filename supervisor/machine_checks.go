package supervisor

import (
	"slices"
	"strings"
	"time"
)

// This file computes the readiness of services with checks, and stops a service whose checks fail.

// ReasonUnhealthy is the prefix of the reason of every transition that a failed check causes.
const ReasonUnhealthy = "unhealthy"

// readinessReport says whether a run is ready, according to the run itself or to its checks.
type readinessReport struct {
	ready bool
	text  string `reexec:"said"`
}

// handleReports replaces the reports of the run itself and of its checks. It ignores reports about another run.
func (m *Machine) handleReports(now time.Time, s *service, run uint64, own, checks readinessReport) {
	if s.state == Up && s.number == run {
		s.ownReport, s.checkReport = own, checks
		m.updateReadiness(now, s)
	}
}

// updateReadiness computes whether a running service is ready. The run itself must be ready. If the service has readiness
// checks, they must also have passed.
func (m *Machine) updateReadiness(now time.Time, s *service) {
	ready := s.ownReport.ready && (!s.hasChecks || s.checkReport.ready)
	said := strings.Join(slices.DeleteFunc([]string{s.ownReport.text, s.checkReport.text}, func(t string) bool { return t == "" }), "; ")
	if s.ready == ready && s.readinessText == said {
		return
	}
	if s.ready != ready {
		s.ready, s.readySince = ready, time.Time{}
		if ready {
			s.readySince = now
			if s.policy.LimitedStarts {
				m.timedOutTurns, m.anyReady = 0, true
			}
		}
	}
	s.readinessText = said
	m.markChanged(s)
}

// handleUnhealthy stops a run whose check has failed for too long. Depending on the event, the service is then restarted or parked.
func (m *Machine) handleUnhealthy(now time.Time, s *service, e Unhealthy) {
	if s.state != Up || s.number != e.Run || s.policy.IsCMD || m.phase != running {
		return
	}
	s.requestedCause, s.failedAnswer, s.parkAfterRun = CauseHealth, e.Answer, e.Park
	m.requestEnd(now, s, ReasonUnhealthy+": "+e.Answer)
}

// The rest of this file handles the sd_notify(3) messages from the processes of a service.

// maxExtensionFactor limits how long a stopping service can delay its end with EXTEND_TIMEOUT_USEC. The limit is this many grace
// periods.
const maxExtensionFactor = 10

// reasonEnding is the reason of the state stopping after a service has sent STOPPING=1.
const reasonEnding = "it says that it is stopping"

// handleNotified handles a message from the current run of a service. It ignores messages from other runs, and messages
// that arrive after the end of the main process.
func (m *Machine) handleNotified(now time.Time, s *service, e NotifyMessage) {
	if s.number != e.Run || !s.isRunning() {
		return
	}
	if e.HasStatus && s.status != e.Status {
		s.status = e.Status
		m.markChanged(s)
	}
	if e.Ready && s.state == Up {
		s.ownReport.ready = true
		m.updateReadiness(now, s)
	}
	if e.Stopping && s.state == Up && m.phase == running && !s.policy.IsCMD {
		// The service ends by itself: hinit sends no signal, and the exit decides what follows.
		s.paused = false
		m.setState(now, s, Stopping, m.deadlineIn(now, s, s.policy.Grace, s.policy.KillNever), reasonEnding)
	}
	if e.Extend > 0 && s.state == Stopping && !s.deadline.IsZero() {
		to, last := now.Add(e.Extend), s.since.Add(maxExtensionFactor*s.policy.Grace)
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
		s.requestedCause, s.failedAnswer = CauseHealth, "it said that it is stopping, and is still alive after the grace"
	}
}
