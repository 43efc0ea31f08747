package supervisor

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

// Services that wait before their start, or are ended, because the container is short of memory or a profile has too much on the disk. Their
// desired state stays as it is.

// shortage says which services must not run for lack of memory, or of space on the disk.
type shortage struct {
	full string            // why every service with Policy.Sheds waits before its start; "" when none has to
	held map[string]string // service → why it alone must not run; a step replaces the map, for undo
}

// setHold notes why a service is held down. An empty reason releases it.
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

// The unmet needs of a service that waits for memory, or until its profile has less on the disk. NeedDisk begins the reason of a [Hold] for that.
const (
	NeedMemory = "memory"
	NeedDisk   = "disk"
)

func forDisk(reason string) bool { return strings.HasPrefix(reason, NeedDisk) }

// hold ends a running service and keeps it from starting. A Hold without a reason lets it start again.
func (m *Machine) hold(now time.Time, s *service, e Hold) {
	held := m.short.held[s.name]
	if !s.policy.Sheds && !e.Disk || m.phase != running || held == e.Reason || !e.Disk && forDisk(held) || e.Disk && e.Reason == "" && !forDisk(held) {
		return
	}
	m.setHold(s.name, e.Reason)
	switch {
	case e.Reason == "" && s.state == Waiting && len(s.needs) == 0:
		m.begin(now, s, "there is room again")
	case e.Reason != "" && s.state == Up:
		if s.asked = CauseShed; e.Disk {
			s.asked = CauseQuota
		}
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

// lacksRoom returns the unmet need of a service that must not start for lack of room, and the reason; "" if it may start.
func (m *Machine) lacksRoom(s *service) (need, reason string) {
	switch held := m.short.held[s.name]; {
	case forDisk(held):
		return NeedDisk, held
	case s.policy.Sheds:
		return NeedMemory, cmp.Or(held, m.short.full)
	}
	return "", ""
}
