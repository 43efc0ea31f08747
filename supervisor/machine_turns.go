package supervisor

import (
	"slices"
	"strconv"
	"time"
)

// How many services start at the same time. A start takes the processor, so with many at once even the first one is late.

const (
	// turnTime is how long a start that does not become ready keeps the others waiting.
	turnTime = 10 * time.Second
	// shortTurn takes its place while none becomes ready: with an agent that never says so, the last of 500 would start after 40 minutes.
	shortTurn = time.Second
	// ReasonTurn begins the reason of a service that waits until others have started.
	ReasonTurn = "waits for its turn"
	// mostTold bounds the line in which everybody is told the place.
	mostTold = 256
)

// turns are the services at their start, and the line of those that wait for a turn. A step replaces the slices.
type turns struct {
	starting []*service `reexec:"-"`
	line     []*service `reexec:"-"` // in no order, see place
	tickets  int64
	unready  int  `reexec:"-"` // turns that have ended by time since a service with turns became ready
	readied  bool `reexec:"-"` // one did, of those that began to start together
}

// atStart reports whether a service takes a turn now.
func (m *Machine) atStart(now time.Time, s *service) bool {
	return s.state == Starting || s.state == Up && !s.ready && now.Before(s.since.Add(m.turnTime()))
}

// turnTime is how long a turn lasts at most.
func (m *Machine) turnTime() time.Duration {
	if m.unready >= 2*m.Parallel {
		return shortTurn
	}
	return turnTime
}

// lineUp lets a service that could start wait for its turn, and reports whether it does. A restart after an exit without an order
// waits for none.
func (m *Machine) lineUp(now time.Time, s *service) bool {
	switch {
	case s.place != 0:
		if s.lacks != nil { // its needs are met again
			s.lacks, s.reason = nil, ReasonTurn
			m.changed(s)
			m.tellPlaces()
		}
		return true
	case m.Parallel == 0 || !s.policy.Turns || s.respawn:
		return false
	case len(m.line) == 0 && m.room(now) > 0:
		m.readied = m.readied && len(m.starting) > 0
		m.starting = append(slices.Clone(m.starting), s)
		return false
	}
	m.tickets++
	s.place = m.tickets
	// The service that was used last comes first. The agent sets that time, so it may be any; a place of 0 means none.
	if ns := s.policy.Used.UnixNano(); !s.started && !s.policy.Used.IsZero() && ns != 0 {
		s.place = -ns
	}
	m.line = append(m.line, s)
	m.set(now, s, Waiting, time.Time{}, ReasonTurn)
	m.tellPlaces()
	return true
}

// room returns how many more services may start now.
func (m *Machine) room(now time.Time) int {
	over := func(s *service) bool { return !m.atStart(now, s) }
	if slices.ContainsFunc(m.starting, over) {
		late := func(s *service) bool { return s.state == Up && !s.ready && over(s) }
		ended := len(m.starting) - len(without(m.starting, late))
		m.starting = without(m.starting, over)
		m.unready += ended // not before: the time of a turn depends on it
	}
	if m.readied {
		return m.Parallel + m.Spare - len(m.starting)
	}
	return m.Parallel - len(m.starting)
}

// leaveLine takes a service out of the line that waits no more.
func (m *Machine) leaveLine(s *service) {
	if s.place != 0 {
		s.place = 0
		m.line = without(m.line, func(o *service) bool { return o == s })
		m.tellPlaces()
	}
}

// nextTurns starts the services whose turn it is.
func (m *Machine) nextTurns(now time.Time) {
	if len(m.line) == 0 || m.phase != running {
		return
	}
	for len(m.line) > 0 && m.room(now) > 0 {
		s := slices.MinFunc(m.line, byPlace)
		m.leaveLine(s)
		if !m.await(now, s) {
			m.starting = append(slices.Clone(m.starting), s)
			m.launch(now, s, "its turn has come")
		}
	}
}

func byPlace(a, b *service) int {
	if a.place < b.place {
		return -1
	}
	return 1
}

// tellPlaces tells everybody in a line of bearable length how many are before it.
func (m *Machine) tellPlaces() {
	if len(m.line) > mostTold {
		return
	}
	for i, s := range slices.SortedStableFunc(slices.Values(m.line), byPlace) {
		if reason := ReasonTurn + " (" + strconv.Itoa(i) + " before it)"; s.reason != reason {
			s.reason = reason
			m.changed(s)
		}
	}
}

// mayTurn returns the services that the next turns may change.
func (m *Machine) mayTurn() []*service {
	if len(m.line) <= mostTold {
		return m.line
	}
	return slices.SortedFunc(slices.Values(m.line), byPlace)[:min(m.Parallel+m.Spare, len(m.line))]
}

// resumeTurns finds out after a hand-over who takes a turn and who waits for one.
func (m *Machine) resumeTurns(now time.Time) {
	for _, s := range m.order {
		if s.place != 0 {
			m.line = append(m.line, s)
		} else if s.policy.Turns && m.atStart(now, s) {
			m.starting = append(m.starting, s)
		}
	}
}
