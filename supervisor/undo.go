package supervisor

import (
	"cmp"
	"slices"
	"time"
)

// undo restores the machine if a step panics, so that the loop of the next program starts from a consistent state. It saves
// only shallow copies. So a step must replace slices and maps, and never change their contents.
type undo struct {
	armed         bool
	savedMachine  Machine
	savedServices []*service
	savedCopies   []service
}

// prepare saves everything that a step with event e may change.
func (u *undo) prepare(m *Machine, e Event) {
	u.armed, u.savedMachine = true, *m
	u.savedServices, u.savedCopies = u.savedServices[:0], u.savedCopies[:0]
	add, ok := e.(Add)
	one := m.services[cmp.Or(add.Name, e.target())]                        // Add has no target, because it may name an unknown service
	if m.dependentServices > 0 || ok && add.Policy.dependsOnOthers() > 0 { // services that depend on others may change too
		for _, s := range m.order {
			if s.policy.dependsOnOthers() > 0 || s.policy.RunBeforeEachStart {
				u.save(s)
			}
		}
	}
	for _, s := range m.servicesAwaitingTurn() {
		u.save(s)
	}
	switch e := e.(type) {
	case Add, Remark:
		u.save(one)
	case Evict:
		for _, name := range e.Names {
			u.save(m.services[name])
		}
	case Tick:
		now := time.Now().Add(time.Second) // Step reads the clock a little later, so include the deadlines of the next second
		for _, s := range m.order {
			if !s.deadline.IsZero() && !now.Before(s.deadline) {
				u.save(s)
			}
		}
	default:
		if one != nil && !one.policy.IsCMD { // the end of the CMD changes every service
			u.save(one)
			return
		}
		u.savedServices, u.savedCopies = slices.Grow(u.savedServices, len(m.order)), slices.Grow(u.savedCopies, len(m.order))
		for _, s := range m.order {
			u.save(s)
		}
	}
}

func (u *undo) save(s *service) {
	if s == nil {
		return
	}
	u.savedServices = append(u.savedServices, s)
	u.savedCopies = append(u.savedCopies, *s)
}

// finish ends a step that has completed. It releases the memory for copies of all services, which few steps need.
func (u *undo) finish(m *Machine) {
	u.armed = false
	if cap(u.savedCopies) > 2*len(m.queue)+16 {
		u.savedServices, u.savedCopies = nil, nil
	}
}

// restore resets the machine to the state before the last step, if that step panicked.
func (u *undo) restore(m *Machine) {
	if !u.armed {
		return
	}
	u.armed = false
	*m = u.savedMachine
	for i, s := range u.savedServices {
		*s = u.savedCopies[i]
	}
	m.services = make(map[string]*service, len(m.order))
	for _, s := range m.order {
		m.services[s.name] = s
	}
}
