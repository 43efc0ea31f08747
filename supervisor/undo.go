package supervisor

import (
	"slices"
	"time"
)

// undo restores the machine if a step panics, so that the loop of the next program starts from a consistent state. It keeps
// only shallow copies. So a step must replace slices and maps, and never change their contents.
type undo struct {
	stepping     bool
	savedMachine Machine
}

// savedService is a copy of a service from before a change.
type savedService struct {
	service *service
	before  service
}

// save keeps a copy of a service for undo. Call it before a step changes the service. If a step saves a service twice, the
// first copy counts.
func (m *Machine) save(s *service) {
	m.effects.saved = append(m.effects.saved, savedService{s, *s})
}

// beginStep copies the machine before a step.
func (u *undo) beginStep(m *Machine) { u.stepping, u.savedMachine = true, *m }

// endStep drops the copies after a step that did not panic. It also releases their memory if a step needed unusually many.
func (u *undo) endStep(m *Machine) {
	u.stepping = false
	if cap(m.effects.saved) > 2*len(m.queue)+16 {
		m.effects.saved = nil
	}
}

// undoStep resets the machine to the state before the last step, if that step panicked.
func (u *undo) undoStep(m *Machine) {
	if !u.stepping {
		return
	}
	u.stepping = false
	saved := m.effects.saved
	*m = u.savedMachine
	for _, c := range slices.Backward(saved) {
		*c.service = c.before
	}
	m.rebuildIndexes()
}

// rebuildIndexes rebuilds what the machine derives from m.order: the maps of services and dependants, and the time of the next
// deadline.
func (m *Machine) rebuildIndexes() {
	m.services, m.dependants = make(map[string]*service, len(m.order)), make(map[string][]*service)
	m.effects.wakeAt = time.Time{}
	for _, s := range m.order {
		m.services[s.name] = s
		m.addToDependants(s)
		m.effects.wakeAt = earlier(m.effects.wakeAt, s.deadline)
	}
}
