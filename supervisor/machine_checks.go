package supervisor

import (
	"slices"
	"strings"
	"time"
)

// The effects of a service's checks: whether it counts as ready, and whether it goes on.

// ReasonUnhealthy begins the reason of every transition that a failed check causes.
const ReasonUnhealthy = "unhealthy"

// checks is what a run and its checks say.
type checks struct {
	own    word   // of the run itself
	probed word   // of its ready and start-up checks
	answer string // why it was ended, for CauseHealth
	park   bool   // it is not started again
}

// word is what somebody says of a run.
type word struct {
	ready bool
	said  string
}

// weigh settles whether a running service counts as ready, by all who have a say in it.
func (m *Machine) weigh(now time.Time, s *service) {
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

// unhealthy ends a run that a check has given up, as a stop would. Then the service has failed, or is parked.
func (m *Machine) unhealthy(now time.Time, s *service, e Unhealthy) {
	if s.state != Up || s.id != e.Run || s.policy.Once || m.phase != running {
		return
	}
	s.asked, s.answer, s.park = CauseHealth, e.Answer, e.Park
	m.end(now, s, ReasonUnhealthy+": "+e.Answer)
}
