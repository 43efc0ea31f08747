package supervisor

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// This file limits how many services start at the same time. A turn is the permission to start. Starting services compete for
// the processor, so too many at once would all become ready late.

const (
	// startSlotTime is how long a service that is not ready keeps its turn. After that, the next service may start.
	startSlotTime = 10 * time.Second
	// shortStartSlotTime replaces startSlotTime after many turns in a row have timed out. Such services probably never report readiness.
	// With startSlotTime, the last of 500 would start after 40 minutes.
	shortStartSlotTime = time.Second
	// ReasonQueued is the prefix of the reason for a wait in the queue of starts: too many services are starting.
	ReasonQueued = "waits for its turn"
	// maxShownQueue is the longest queue in which the status of each service shows its position.
	maxShownQueue = 256
)

// startQueue holds the starting services, and the queue of services that wait to start. A step replaces the slices and never
// modifies them, so that undo can restore the old ones.
type startQueue struct {
	inTurn       []*service `reexec:"-"`       // services that have a turn
	queue        []*service `reexec:"-"`       // waiting services, not sorted: service.queuePosition gives the order
	lastPosition int64      `reexec:"tickets"` // highest queue position that was given to a service
	// turns in a row that ran out before their service was ready
	timedOutTurns int  `reexec:"-"`
	anyReady      bool `reexec:"-"` // a service has become ready since `starting` was last empty, so ExtraStarting applies
}

// holdsTurn reports whether a service counts as starting: it is not ready, and its turn has not run out.
func (m *Machine) holdsTurn(now time.Time, s *service) bool {
	return s.state == Starting || s.state == Up && !s.ready && now.Before(s.since.Add(m.turnLimit()))
}

// turnLimit returns how long a service that is not ready keeps its turn.
func (m *Machine) turnLimit() time.Duration {
	if m.timedOutTurns >= 2*m.MaxStarting {
		return shortStartSlotTime
	}
	return startSlotTime
}

// enqueue gives a service a turn, or puts it into the queue if too many services are starting. It reports whether the service
// has to wait. An automatic restart never waits.
func (m *Machine) enqueue(now time.Time, s *service) bool {
	switch {
	case s.queuePosition != 0:
		if s.unmetNeeds != nil {
			s.unmetNeeds, s.reason = nil, ReasonQueued
			m.markChanged(s)
			m.updateQueuePositions()
		}
		return true
	case m.MaxStarting == 0 || !s.policy.LimitedStarts || s.respawn:
		return false
	case len(m.queue) == 0 && m.freeTurns(now) > 0:
		m.anyReady = m.anyReady && len(m.inTurn) > 0
		m.inTurn = append(slices.Clone(m.inTurn), s)
		return false
	}
	m.lastPosition++
	s.queuePosition = m.lastPosition
	// Recently used services come first, so they get negative positions. The agent controls Policy.LastUsed, so the time may
	// have any value: even one that would give position 0, which means "not queued".
	if ns := s.policy.LastUsed.UnixNano(); !s.started && !s.policy.LastUsed.IsZero() && ns != 0 {
		s.queuePosition = -ns
	}
	m.queue = append(m.queue, s)
	m.setState(now, s, Waiting, time.Time{}, ReasonQueued)
	m.updateQueuePositions()
	return true
}

// freeTurns returns how many more services may start now. It takes the turn from services that are ready, have ended or took
// too long.
func (m *Machine) freeTurns(now time.Time) int {
	over := func(s *service) bool { return !m.holdsTurn(now, s) }
	if slices.ContainsFunc(m.inTurn, over) {
		late := func(s *service) bool { return s.state == Up && !s.ready && over(s) }
		ended := len(m.inTurn) - len(cloneWithout(m.inTurn, late))
		m.inTurn = cloneWithout(m.inTurn, over)
		m.timedOutTurns += ended // turnLimit and holdsTurn read the count, so it must change after these calls
	}
	if m.anyReady {
		return m.MaxStarting + m.ExtraStarting - len(m.inTurn)
	}
	return m.MaxStarting - len(m.inTurn)
}

// dequeue removes a service from the queue of starts. It does nothing if the service is not in the queue.
func (m *Machine) dequeue(s *service) {
	if s.queuePosition != 0 {
		s.queuePosition = 0
		m.queue = cloneWithout(m.queue, func(o *service) bool { return o == s })
		m.updateQueuePositions()
	}
}

// startQueued starts services from the head of the queue while turns are free. A service whose needs are no longer met waits
// for them instead.
func (m *Machine) startQueued(now time.Time) {
	for m.phase == phaseRunning && len(m.queue) > 0 && m.freeTurns(now) > 0 {
		s := slices.MinFunc(m.queue, compareQueuePositions)
		m.saveForUndo(s)
		m.dequeue(s)
		if !m.waitForNeeds(now, s) {
			m.inTurn = append(slices.Clone(m.inTurn), s)
			m.startRun(now, s, "its turn has come")
		}
	}
}

func compareQueuePositions(a, b *service) int {
	return cmp.Compare(a.queuePosition, b.queuePosition)
}

// updateQueuePositions writes the number of earlier services into the reason of each queued service. It skips long queues,
// because each change would publish hundreds of services.
func (m *Machine) updateQueuePositions() {
	if len(m.queue) > maxShownQueue {
		return
	}
	for i, s := range slices.SortedStableFunc(slices.Values(m.queue), compareQueuePositions) {
		if reason := ReasonQueued + " (" + strconv.Itoa(i) + " before it)"; s.reason != reason {
			m.saveForUndo(s)
			s.reason = reason
			m.markChanged(s)
		}
	}
}

// resumeTurns rebuilds the queue and the list of starting services after a re-execution, from the state of each service.
func (m *Machine) resumeTurns(now time.Time) {
	for _, s := range m.inOrder {
		if s.queuePosition != 0 {
			m.queue = append(m.queue, s)
		} else if s.policy.LimitedStarts && m.holdsTurn(now, s) {
			m.inTurn = append(m.inTurn, s)
		}
	}
}
