package supervisor

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

// This file handles holds. A held service is ended or waits before its start, because the container lacks memory or its
// profile uses too much disk space. A hold does not change the desired state of a service.

// shortage records which services must not run, because memory or disk space is short.
type shortage struct {
	startsHeld string            `reexec:"full"` // why all services with Policy.Sheddable must wait before they start; "" if they need not wait
	held       map[string]string // why a single service must not run, by name; a step replaces the map, so that undo can restore the old one
}

// setHold records why a service must not run. An empty reason releases the service.
func (m *Machine) setHold(name, reason string) {
	if m.shortage.held[name] == reason {
		return
	}
	held := make(map[string]string)
	maps.Copy(held, m.shortage.held)
	held[name] = reason
	if reason == "" {
		delete(held, name)
	}
	m.shortage.held = held
}

// NeedMemory and NeedDisk appear in the list of unmet needs of a waiting service. NeedMemory means that the container lacks memory,
// NeedDisk that the service's profile uses too much disk space. The Reason of a [Hold] with Disk begins with NeedDisk.
const (
	NeedMemory = "memory"
	NeedDisk   = "disk"
)

func isDiskHold(reason string) bool { return strings.HasPrefix(reason, NeedDisk) }

// handleHold handles a Hold event: it ends a running service and keeps it from starting, or releases it if the event has no reason.
func (m *Machine) handleHold(now time.Time, s *service, e Hold) {
	held := m.shortage.held[s.name]
	if !s.policy.Sheddable && !e.Disk || m.phase != running || held == e.Reason || !e.Disk && isDiskHold(held) || e.Disk && e.Reason == "" && !isDiskHold(held) {
		return
	}
	m.setHold(s.name, e.Reason)
	switch {
	case e.Reason == "" && s.state == Waiting && len(s.needs) == 0:
		m.startOrWait(now, s, "there is room again")
	case e.Reason != "" && s.state == Up:
		s.requestedCause = CauseShed
		if e.Disk {
			s.requestedCause = CauseQuota
		}
		m.requestEnd(now, s, e.Reason)
	default:
		m.markChanged(s)
	}
}

// handleHoldStarts makes all services with Policy.Sheddable wait before they start, and shows them the given reason. With an empty
// reason it starts the waiting services.
func (m *Machine) handleHoldStarts(now time.Time, reason string) {
	if m.shortage.startsHeld == reason || m.phase != running {
		return
	}
	told := reason
	if reason == "" {
		told = "there is memory for starts again"
	}
	m.emit(Note{Record{At: now, Reason: told}})
	m.shortage.startsHeld = reason
	for _, s := range m.order {
		if s.state == Waiting && len(s.unmet) == 1 && s.unmet[0] == NeedMemory && len(s.needs) == 0 {
			m.startOrWait(now, s, "there is memory again")
		}
	}
}

// shortageFor returns the reason why a service must wait for memory or disk space, and the name of this need: NeedMemory or
// NeedDisk. The reason is "" if the service may start.
func (m *Machine) shortageFor(s *service) (need, reason string) {
	switch held := m.shortage.held[s.name]; {
	case isDiskHold(held):
		return NeedDisk, held
	case s.policy.Sheddable:
		return NeedMemory, cmp.Or(held, m.shortage.startsHeld)
	}
	return "", ""
}
