package supervisor

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// A turn is the permission to start. The number of turns limits how many services start at the same time. A starting
// service mainly needs the processor, so many simultaneous starts would delay each other.

const (
	// turnTime is the maximum time for which a service that is not ready counts as starting, and so keeps its turn.
	turnTime = 10 * time.Second
	// shortTurn replaces turnTime when many services in a row have not become ready in time, probably because they do
	// not report readiness. If each of 500 services counted as starting for 10 s, the last one would start after 40
	// minutes.
	shortTurn = time.Second
	// ReasonTurn is the prefix of the reason of a service that waits because too many services are starting.
	ReasonTurn = "waits for its turn"
	// maxShownPositions is the maximum length of a queue in which each waiting service shows its position.
	maxShownPositions = 256
)

// turns holds the services that are starting, and the queue of services that wait to start. A step replaces the slices
// instead of modifying them, so that undo can restore the old ones.
type turns struct {
	starting      []*service `reexec:"-"`
	queue         []*service `reexec:"-"` // not sorted: service.queuePosition gives the order
	lastPosition  int64      `reexec:"tickets"`
	timedOutTurns int        `reexec:"-"` // number of turns that timed out since a service with Policy.LimitedStarts last became ready
	anyReady      bool       `reexec:"-"` // a service has become ready since the list of starting services was last empty
}

// holdsTurn reports whether a service counts as starting at the time now, against the limit on simultaneous starts.
func (m *Machine) holdsTurn(now time.Time, s *service) bool {
	return s.state == Starting || s.state == Up && !s.ready && now.Before(s.since.Add(m.turnLimit()))
}

// turnLimit returns the maximum time for which a service that is not ready counts as starting.
func (m *Machine) turnLimit() time.Duration {
	if m.timedOutTurns >= 2*m.Parallel {
		return shortTurn
	}
	return turnTime
}

// enqueue puts a service into the queue if too many services are starting, and reports whether the service has to wait.
// Automatic restarts don't wait.
func (m *Machine) enqueue(now time.Time, s *service) bool {
	switch {
	case s.queuePosition != 0:
		if s.unmet != nil { // the needs of the service are met again
			s.unmet, s.reason = nil, ReasonTurn
			m.markChanged(s)
			m.updateQueuePositions()
		}
		return true
	case m.Parallel == 0 || !s.policy.LimitedStarts || s.respawn:
		return false
	case len(m.queue) == 0 && m.freeTurns(now) > 0:
		m.anyReady = m.anyReady && len(m.starting) > 0
		m.starting = append(slices.Clone(m.starting), s)
		return false
	}
	m.lastPosition++
	s.queuePosition = m.lastPosition
	// Recently used services come first. The agent controls Policy.LastUsed, so this time may have any value. Position 0 is
	// reserved for "not in the queue".
	if ns := s.policy.LastUsed.UnixNano(); !s.started && !s.policy.LastUsed.IsZero() && ns != 0 {
		s.queuePosition = -ns
	}
	m.queue = append(m.queue, s)
	m.setState(now, s, Waiting, time.Time{}, ReasonTurn)
	m.updateQueuePositions()
	return true
}

// freeTurns returns how many more services may start now. First it removes from the list of starting services those that
// are ready, have ended or took too long.
func (m *Machine) freeTurns(now time.Time) int {
	over := func(s *service) bool { return !m.holdsTurn(now, s) }
	if slices.ContainsFunc(m.starting, over) {
		late := func(s *service) bool { return s.state == Up && !s.ready && over(s) }
		ended := len(m.starting) - len(without(m.starting, late))
		m.starting = without(m.starting, over)
		m.timedOutTurns += ended // after the calls above, because turnLimit and holdsTurn read the count
	}
	if m.anyReady {
		return m.Parallel + m.ParallelExtra - len(m.starting)
	}
	return m.Parallel - len(m.starting)
}

// dequeue removes a service from the queue.
func (m *Machine) dequeue(s *service) {
	if s.queuePosition != 0 {
		s.queuePosition = 0
		m.queue = without(m.queue, func(o *service) bool { return o == s })
		m.updateQueuePositions()
	}
}

// startQueued starts the first services of the queue, as many as may start now.
func (m *Machine) startQueued(now time.Time) {
	if len(m.queue) == 0 || m.phase != running {
		return
	}
	for len(m.queue) > 0 && m.freeTurns(now) > 0 {
		s := slices.MinFunc(m.queue, compareQueuePositions)
		m.dequeue(s)
		if !m.waitForNeeds(now, s) {
			m.starting = append(slices.Clone(m.starting), s)
			m.startRun(now, s, "its turn has come")
		}
	}
}

func compareQueuePositions(a, b *service) int {
	return cmp.Compare(a.queuePosition, b.queuePosition)
}

// updateQueuePositions updates the reason of each queued service, which says how many services are before it.
// updateQueuePositions does nothing for a long queue, because updating all its services would cost too much.
func (m *Machine) updateQueuePositions() {
	if len(m.queue) > maxShownPositions {
		return
	}
	for i, s := range slices.SortedStableFunc(slices.Values(m.queue), compareQueuePositions) {
		if reason := ReasonTurn + " (" + strconv.Itoa(i) + " before it)"; s.reason != reason {
			s.reason = reason
			m.markChanged(s)
		}
	}
}

// servicesAwaitingTurn returns the services that startQueued, dequeue and updateQueuePositions may change in one step, for undo.
func (m *Machine) servicesAwaitingTurn() []*service {
	if len(m.queue) <= maxShownPositions {
		return m.queue
	}
	return slices.SortedFunc(slices.Values(m.queue), compareQueuePositions)[:min(m.Parallel+m.ParallelExtra, len(m.queue))]
}

// resumeTurns rebuilds the queue and the list of starting services after a re-execution.
func (m *Machine) resumeTurns(now time.Time) {
	for _, s := range m.order {
		if s.queuePosition != 0 {
			m.queue = append(m.queue, s)
		} else if s.policy.LimitedStarts && m.holdsTurn(now, s) {
			m.starting = append(m.starting, s)
		}
	}
}
