package supervisor

import (
	"slices"
	"time"
)

// undo takes back one step of a machine that panicked in the middle, so the successor does not begin with half of a change. The copies
// are shallow: a step replaces slices, and never changes what is in them.
type undo struct {
	armed    bool
	machine  Machine
	touched  []*service
	services []service
}

// prepare notes what a step with e may change.
func (u *undo) prepare(m *Machine, e Event) {
	u.armed = true
	u.machine = *m
	clear(u.touched)
	u.touched, u.services = u.touched[:0], u.services[:0]
	one := m.services[subject(e)]
	if add, ok := e.(Add); m.links > 0 || ok && add.Policy.linked() > 0 { // others may follow
		for _, s := range m.order {
			if s.policy.linked() > 0 || s.policy.EachStart {
				u.save(s)
			}
		}
	}
	for _, s := range m.mayTurn() {
		u.save(s)
	}
	switch e.(type) {
	case Add, Remark:
		u.save(one)
	case Tick:
		now := time.Now().Add(time.Second) // a little more than the step itself will look at
		for _, s := range m.order {
			if !s.deadline.IsZero() && !now.Before(s.deadline) {
				u.save(s)
			}
		}
	default:
		if one != nil && !one.policy.Once { // the end of the CMD is the end of all
			u.save(one)
			return
		}
		u.touched, u.services = slices.Grow(u.touched, len(m.order)), slices.Grow(u.services, len(m.order))
		for _, s := range m.order {
			u.save(s)
		}
	}
}

// subject is the service that an event changes: what it is about, for Add too.
func subject(e Event) string {
	if add, ok := e.(Add); ok {
		return add.Name
	}
	return e.target()
}

func (u *undo) save(s *service) {
	if s == nil {
		return
	}
	u.touched = append(u.touched, s)
	u.services = append(u.services, *s)
}

// done discards the undo record: the step succeeded.
func (u *undo) done() { u.armed = false }

// apply takes the step back that did not come to its end, if any.
func (u *undo) apply(m *Machine) {
	if !u.armed {
		return
	}
	u.armed = false
	*m = u.machine
	for i, s := range u.touched {
		*s = u.services[i]
	}
	m.services = make(map[string]*service, len(m.order))
	for _, s := range m.order {
		m.services[s.name] = s
	}
}
