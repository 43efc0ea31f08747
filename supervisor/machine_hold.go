package supervisor

import (
	"cmp"
	"maps"
	"strings"
	"time"
)

// This file handles holds. A hold ends a service, or delays its start, while the container lacks memory or the service's
// profile uses too much disk space. The desired state of the service stays the same.

// shortage records why services must not run at present.
type shortage struct {
	startsHeld string            `reexec:"full"` // reason why services with Policy.Sheddable must not start; "" if they may start
	held       map[string]string // reason of the hold by service; a step replaces the map and never modifies it, because undo may restore the old map
}

// setHold records why a service must not run. An empty reason removes the hold.
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

// The unmet needs of a service that waits because of a hold. NeedMemory means that the container lacks memory. NeedDisk means
// that the profile uses too much disk space; the Reason of a [Hold] with Disk must begin with it.
const (
	NeedMemory = "memory"
	NeedDisk   = "disk"
)

func isDiskHold(reason string) bool { return strings.HasPrefix(reason, NeedDisk) }

// handleHold ends a running service and prevents its next start. An event without a reason releases the service. A hold for
// disk space replaces a hold for memory, and only an event with Disk changes a hold for disk space.
func (m *Machine) handleHold(now time.Time, s *service, e Hold) {
	held := m.shortage.held[s.name]
	if !s.policy.Sheddable && !e.Disk || m.phase != phaseRunning || held == e.Reason || !e.Disk && isDiskHold(held) || e.Disk && e.Reason == "" && !isDiskHold(held) {
		return
	}
	m.setHold(s.name, e.Reason)
	switch {
	// the service keeps waiting if the event has a reason
	case s.state == Waiting && len(s.needs) == 0:
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

// handleHoldStarts makes services with Policy.Sheddable wait before they start, for the given reason. With an empty reason it
// starts the services that wait only for memory.
func (m *Machine) handleHoldStarts(now time.Time, reason string) {
	if m.shortage.startsHeld == reason || m.phase != phaseRunning {
		return
	}
	message := reason
	if reason == "" {
		message = "there is memory for starts again"
	}
	m.emit(AppendRecord{Record{At: now, Reason: message}})
	m.shortage.startsHeld = reason
	for _, s := range m.inOrder {
		if s.state == Waiting && len(s.unmetNeeds) == 1 && s.unmetNeeds[0] == NeedMemory && len(s.needs) == 0 {
			m.saveForUndo(s)
			m.startOrWait(now, s, "there is memory again")
		}
	}
}

// shortageFor returns why a service must not start for lack of memory or disk space, and the kind of shortage: NeedMemory or
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
