package supervisor

import (
	"cmp"
	"maps"
	"time"
)

// Memory shortage: services that may be shed wait before their start, or are ended. Their desired state stays as it is.

// shortage says which services must not run because the container is short of memory.
type shortage struct {
	full string            // why every service with Policy.Sheds waits before its start; "" when none has to
	held map[string]string // service → why it alone must not run; a step replaces the map, for undo
}

// setHold notes why a service is held down for memory. An empty reason releases it.
func (m *Machine) setHold(name, reason string) {
	if m.short.held[name] == reason {
		return
	}
	m.short.held = maps.Clone(m.short.held)
	if reason == "" {
		delete(m.short.held, name)
		return
	}
	if m.short.held == nil {
		m.short.held = make(map[string]string)
	}
	m.short.held[name] = reason
}

// NeedMemory stands among the unmet needs of a service that waits for memory.
const NeedMemory = "memory"

// hold ends a running service and keeps it from starting. A Hold without a reason lets it start again.
func (m *Machine) hold(now time.Time, s *service, e Hold) {
	if !s.policy.Sheds || m.phase != running || m.short.held[s.name] == e.Reason {
		return
	}
	m.setHold(s.name, e.Reason)
	switch {
	case e.Reason == "" && s.state == Waiting && len(s.needs) == 0:
		m.begin(now, s, "there is memory again")
	case e.Reason != "" && s.state == Up:
		s.asked = CauseShed
		m.end(now, s, e.Reason)
	default:
		m.changed(s)
	}
}

// fill makes services with Policy.Sheds wait before they start, for the given reason. An empty reason starts the waiting
// services.
func (m *Machine) fill(now time.Time, reason string) {
	if m.short.full == reason || m.phase != running {
		return
	}
	told := reason
	if reason == "" {
		told = "there is memory for starts again"
	}
	if m.short.full == "" || reason == "" {
		m.do(Note{Record{At: now, Reason: told}})
	}
	m.short.full = reason
	for _, s := range m.order {
		if s.state == Waiting && len(s.lacks) == 1 && s.lacks[0] == NeedMemory && len(s.needs) == 0 {
			m.begin(now, s, "there is memory again")
		}
	}
}

// lacksMemory returns why a service must not start for lack of memory, "" if it may start.
func (m *Machine) lacksMemory(s *service) string {
	if !s.policy.Sheds {
		return ""
	}
	return cmp.Or(m.short.held[s.name], m.short.full)
}
