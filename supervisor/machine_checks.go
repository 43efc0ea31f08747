package supervisor

import (
	"slices"
	"strings"
	"time"
)

// This file computes whether a service is ready, from its own reports and its checks, and stops a service whose liveness
// check fails.

// ReasonUnhealthy is the prefix of the reason of every transition that a failed check causes.
const ReasonUnhealthy = "unhealthy"

// readinessReport says whether a run is ready. Each run has two reports: from the service, and from its checks.
type readinessReport struct {
	ready bool
	text  string `reexec:"said"`
}

// handleReports stores the report of a run and the report of its checks. It ignores reports about an earlier run.
func (m *Machine) handleReports(now time.Time, s *service, run uint64, own, checks readinessReport) {
	if s.state == Up && s.number == run {
		s.ownReport, s.checkReport = own, checks
		m.updateReadiness(now, s)
	}
}

// updateReadiness computes whether a running service is ready. The report of the service, and the report of its checks (if
// any), must both say so.
func (m *Machine) updateReadiness(now time.Time, s *service) {
	ready := s.ownReport.ready && (!s.hasChecks || s.checkReport.ready)
	text := strings.Join(slices.DeleteFunc([]string{s.ownReport.text, s.checkReport.text}, func(t string) bool { return t == "" }), "; ")
	if s.ready == ready && s.readinessText == text {
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
	s.readinessText = text
	m.markChanged(s)
}

// handleUnhealthy stops a run whose liveness check has failed for too long. The event says whether the service is then
// restarted or parked.
func (m *Machine) handleUnhealthy(now time.Time, s *service, e Unhealthy) {
	if s.state != Up || s.number != e.Run || s.policy.IsCMD || m.phase != phaseRunning {
		return
	}
	s.requestedCause, s.failedAnswer, s.parkAfterRun = CauseHealth, e.Answer, e.Park
	m.requestEnd(now, s, ReasonUnhealthy+": "+e.Answer)
}

// The rest of this file handles the sd_notify(3) messages of services.

// maxExtensionFactor limits how long a stopping service can delay SIGKILL with EXTEND_TIMEOUT_USEC: to this many grace
// periods from the start of the stop.
const maxExtensionFactor = 10

// reasonSaysStopping is the reason of the state stopping for a service that has sent STOPPING=1.
const reasonSaysStopping = "it says that it is stopping"

// handleNotified handles an sd_notify message from the current run of a service. It ignores messages from earlier runs, and
// messages that arrive after the main process has ended.
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
	if e.Stopping && s.state == Up && m.phase == phaseRunning && !s.policy.IsCMD {
		// The service ends by itself, so hinit sends no signal. The exit decides the next state.
		s.paused = false
		m.setState(now, s, Stopping, m.deadlineIn(now, s, s.policy.Grace, s.policy.KillNever), reasonSaysStopping)
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
