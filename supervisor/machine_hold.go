package supervisor

import (
	"cmp"
	"maps"
	"time"
)

// Starts that wait, and services that are ended, because the container is short of memory. The want of a service stays as it is.

// shortage is what the container's lack of memory keeps from running.
type shortage struct {
	full string            // why starts wait, "" when they don't
	held map[string]string // services that must not start → why, also while others may; a step replaces the map
}

// setHold notes why a service is held, "" for not.
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

// NeedMemory is the need that a service lists while it waits for memory.
const NeedMemory = "memory"

// hold ends a running service and keeps it from starting until it is released.
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

// fill lets services that could start wait for memory, or starts them.
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

// lacksMemory says why a service must not start for now, "" if it may.
func (m *Machine) lacksMemory(s *service) string {
	if !s.policy.Sheds {
		return ""
	}
	return cmp.Or(m.short.held[s.name], m.short.full)
}
