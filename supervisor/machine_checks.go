package supervisor

import (
	"slices"
	"strings"
	"time"
)

// Readiness by checks, and the end of a service whose checks fail.

// ReasonUnhealthy begins the reason of every transition that a failed check causes.
const ReasonUnhealthy = "unhealthy"

// checks holds the readiness reports about a run, from the run itself and from its checks, and why hinit ended it if a check
// failed.
type checks struct {
	own    readinessReport // report of the run itself
	probed readinessReport // report of its ready and start-up checks
	answer string          // last answer of the failed check for which hinit ended the run
	park   bool            // park the service after this run
}

// readinessReport says whether a run is ready, according to the run itself or to its checks.
type readinessReport struct {
	ready bool
	said  string
}

// updateReadiness computes whether a running service is ready. The run itself must be ready, and its checks too if it has any.
func (m *Machine) updateReadiness(now time.Time, s *service) {
	ready := s.own.ready && (!s.checked || s.probed.ready)
	said := strings.Join(slices.DeleteFunc([]string{s.own.said, s.probed.said}, func(t string) bool { return t == "" }), "; ")
	if s.ready == ready && s.said == said {
		return
	}
	if s.ready != ready {
		s.ready, s.readySince = ready, time.Time{}
		if ready {
			s.readySince = now
			if s.policy.Turns {
				m.unready, m.readied = 0, true
			}
		}
	}
	s.said = said
	m.changed(s)
}

// unhealthy stops a run whose check has failed for too long. Depending on the event, the service is then restarted or parked.
func (m *Machine) unhealthy(now time.Time, s *service, e Unhealthy) {
	if s.state != Up || s.id != e.Run || s.policy.Once || m.phase != running {
		return
	}
	s.requestedCause, s.answer, s.park = CauseHealth, e.Answer, e.Park
	m.requestEnd(now, s, ReasonUnhealthy+": "+e.Answer)
}
