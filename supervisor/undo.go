package supervisor

import (
	"slices"
	"time"
)

// stepUndo restores the machine if a step panics, so that the loop of the next program starts from a consistent state. It stores
// only shallow copies. A step must therefore replace slices and maps, and never change their contents.
type stepUndo struct {
	stepping     bool
	savedMachine Machine
}

// savedService is a copy of a service from before a change.
type savedService struct {
	service *service
	before  service
}

// saveForUndo stores a copy of a service for undo. Call it before a step changes the service. Only the first call for a service
// in a step has an effect.
func (m *Machine) saveForUndo(s *service) {
	m.stepResult.saved = append(m.stepResult.saved, savedService{s, *s})
}

func (u *stepUndo) beginStep(m *Machine) { u.stepping, u.savedMachine = true, *m }

// endStep drops the copies after a successful step. It also releases their memory if the step needed unusually many.
func (u *stepUndo) endStep(m *Machine) {
	u.stepping = false
	if cap(m.stepResult.saved) > 2*len(m.queue)+16 {
		m.stepResult.saved = nil
	}
}

// undoStep resets the machine to the state before the last step, if that step panicked.
func (u *stepUndo) undoStep(m *Machine) {
	if !u.stepping {
		return
	}
	u.stepping = false
	saved := m.stepResult.saved
	*m = u.savedMachine
	for _, c := range slices.Backward(saved) {
		*c.service = c.before
	}
	m.rebuildIndexes()
}

// rebuildIndexes rebuilds all state that the machine derives from m.order: the maps of services and dependants, and the next
// deadline.
func (m *Machine) rebuildIndexes() {
	m.services, m.dependants = make(map[string]*service, len(m.inOrder)), make(map[string][]*service)
	m.stepResult.wakeAt = time.Time{}
	for _, s := range m.inOrder {
		m.services[s.name] = s
		m.addToDependants(s)
		m.stepResult.wakeAt = earlier(m.stepResult.wakeAt, s.deadline)
	}
}
