// Package orders carries out the commands of operators to gateways (orders), even if the client no longer waits.
//
// Each profile has a queue, and its orders are carried out one after the other. If the volume does not answer, the newest order
// replaces an older one that has waited for a second and has not reached the supervisor. So the newest order decides the final
// state, on the disk and in the supervisor.
//
// The package owns a goroutine for each profile with orders, and another goroutine while an order is synced to the disk.
package orders

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/profiles"
)

const (
	// stopTimeout is how long a stop waits for the record of its intent on the volume before it continues without a record. A
	// start always waits, because starting a process in a directory that hangs would block the supervisor. After the same time,
	// a newer order may replace a waiting order.
	stopTimeout = time.Second
	// maxQueuedOrders is how many orders of one profile may wait in its queue.
	maxQueuedOrders = 16
)

// Backend does the work for an order. Package gateways implements it.
type Backend interface {
	// Record writes the intent of an order to the volume. After an error the order is not carried out. The function sync makes
	// the record survive a crash of the machine. Both block on the disk.
	Record(o *Order) (sync func() error, err error)
	// Execute passes an order to the supervisor, and returns when the supervisor has it. effect tells users the immediate
	// effect, such as "gateway-coder got TERM". Execute does not wait for the disk.
	Execute(o *Order) (effect string, err error)
	// RetryRecord makes hinit write the record of an order that was carried out without one. It does not block.
	RetryRecord(o *Order)
}

// Queues holds the orders of all profiles. Any goroutine may call its methods.
type Queues struct {
	backend Backend

	mu     sync.Mutex
	queues map[string]*queue // queues by profile, only of profiles with orders
}

// New returns Queues without orders.
func New(backend Backend) *Queues { return &Queues{backend: backend, queues: make(map[string]*queue)} }

// queue holds the orders of one profile. The mutex of Queues guards it.
type queue struct {
	current   *Order
	waiting   []*Order      // waiting orders, oldest first
	passToken chan struct{} // channel of capacity 1 with a token while an order is passed to the supervisor
}

// Order is one command of an operator to one gateway, for example to stop it.
type Order struct {
	Verb             client.Verb
	Service, Profile string
	By               *client.Author // the operator, or nil if unknown; root if root is one of several clients
	submittedAt      time.Time      // when the order was submitted
	done             chan struct{}  // closed when the order has been carried out or has failed

	// The mutex of Queues guards the fields below.
	unrecordedAt time.Time // when the order continues without a record; zero for never
	recorded     bool      // the intent is on the volume, or hinit retries until it is
	passClaimed  bool      // the order is being passed to the supervisor, or the supervisor has it
	executed     bool      // the supervisor has the order; err and effect are the result
	executeError error
	effectText   string
	replaced     bool   // a newer order has replaced this order
	replacedBy   *Order // the newer order if it has the same verb, so that its result counts for both
	err          error
}

// StayDown is the verb that sets the desired state of a gateway to down without ending it (s6-svc -Q).
const StayDown client.Verb = "unwant"

// DesiredState returns the desired_state that an order records for its profile.
func (o *Order) DesiredState() string {
	if o.Verb == client.VerbStop || o.Verb == StayDown {
		return profiles.Stopped
	}
	return profiles.Running
}

// Submit queues an order, without blocking. If the newest order has the same verb and has not reached the supervisor, Submit
// returns that order instead. patience is how long the client waits (0: no limit); a stop takes less time, even without a
// record. by is the author of the order.
func (s *Queues) Submit(verb client.Verb, service, profile string, patience time.Duration, by *client.Author) *Order {
	o := &Order{Verb: verb, Service: service, Profile: profile, By: by, submittedAt: time.Now(), done: make(chan struct{})}
	if o.DesiredState() == profiles.Stopped {
		wait := stopTimeout
		if patience > 0 {
			wait = min(wait, patience/2)
		}
		o.unrecordedAt = o.submittedAt.Add(wait)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[profile]
	if q == nil {
		q = &queue{waiting: []*Order{o}, passToken: make(chan struct{}, 1)}
		s.queues[profile] = q
		s.startStopTimer(q, o)
		guard.Go("carrying out orders", func() {
			for s.advance(q, profile) {
				s.executeCurrent(q)
			}
		})
		return o
	}
	if n := q.newestOrder(); n != nil && n.Verb == verb && !n.passClaimed {
		if o.unrecordedAt.Before(n.unrecordedAt) {
			n.unrecordedAt = o.unrecordedAt
			s.startStopTimer(q, n)
		}
		if by != nil && by.UID == 0 {
			n.By = by
		}
		o = n
	} else {
		s.startStopTimer(q, o)
		if last := len(q.waiting) - 1; last+1 >= maxQueuedOrders {
			supersede(q.waiting[last], o)
			q.waiting = q.waiting[:last]
		}
		q.waiting = append(q.waiting, o)
	}
	return o
}

// startStopTimer sets a timer for a stop. A stop that is still the newest order when the timer fires goes to the supervisor
// without a record.
func (s *Queues) startStopTimer(q *queue, o *Order) {
	if !o.unrecordedAt.IsZero() {
		time.AfterFunc(time.Until(o.unrecordedAt), guard.WrapFunc("carrying out an order", func() { s.passToSupervisor(q, o, true) }))
	}
}

func (q *queue) newestOrder() *Order {
	if n := len(q.waiting); n > 0 {
		return q.waiting[n-1]
	}
	return q.current
}

// isOverdue reports whether the newest order may replace the current order after its long wait. The caller holds the mutex.
func (q *queue) isOverdue() bool {
	return len(q.waiting) > 0 && time.Since(q.current.submittedAt) >= stopTimeout
}

// supersede ends the order o in favour of the order newer. The caller holds the mutex.
func supersede(o, newer *Order) {
	o.replaced = true
	if o.Verb == newer.Verb {
		o.replacedBy = newer
	} else {
		o.err = &client.Error{Kind: client.KindFailed, Message: fmt.Sprintf("superseded: %s was asked to %s meanwhile", o.Service, newer.Verb)}
	}
	close(o.done)
}

// advance makes the oldest waiting order the current order. If no order waits, it removes the queue and returns false.
func (s *Queues) advance(q *queue, profile string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.current = nil
	for q.current == nil && len(q.waiting) > 0 {
		q.current, q.waiting = q.waiting[0], q.waiting[1:]
		if q.isOverdue() {
			supersede(q.current, q.newestOrder())
			q.current = nil
		}
	}
	if q.current == nil {
		delete(s.queues, profile)
	}
	return q.current != nil
}

// executeCurrent records the current order and passes it to the supervisor. Only the queue's goroutine calls it.
func (s *Queues) executeCurrent(q *queue) {
	o := q.current
	sync, err := s.backend.Record(o)
	if err != nil {
		s.finish(o, err)
		return
	}
	if s.setRecorded(q, o) {
		return
	}
	synced := make(chan error, 1) // the supervisor carries the order out during the sync, and Wait waits for both
	guard.Go("syncing the record of an order", func() { synced <- sync() })
	s.passToSupervisor(q, o, false)
	unrecorded := <-synced
	err = o.executeError
	if unrecorded != nil {
		s.backend.RetryRecord(o)
		if err == nil {
			err = fmt.Errorf("the %s is under way, but %w", o.Verb, unrecorded)
		}
	}
	s.finish(o, err)
}

// setRecorded marks the current order as recorded. It returns true if a newer order has replaced the current order.
func (s *Queues) setRecorded(q *queue, o *Order) (replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.recorded = true
	if !o.replaced && !o.passClaimed && q.isOverdue() {
		supersede(o, q.newestOrder())
	}
	return o.replaced
}

// passToSupervisor passes an order to the supervisor, unless the supervisor already has it. If overtakes is set, the newest
// order may go before older orders.
func (s *Queues) passToSupervisor(q *queue, o *Order, overtakes bool) {
	q.passToken <- struct{}{}
	defer func() { <-q.passToken }()
	if !s.claimTurn(q, o, overtakes) {
		return
	}
	effect, err := s.backend.Execute(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	o.executed, o.effectText, o.executeError = true, effect, err
}

// claimTurn reports whether to pass an order to the supervisor now. If overtakes is set, the order replaces earlier orders that
// the supervisor does not have.
func (s *Queues) claimTurn(q *queue, o *Order, overtakes bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.passClaimed || o.replaced || overtakes && q.newestOrder() != o {
		return false
	}
	o.passClaimed = true
	if !overtakes || q.current == o {
		return true
	}
	if c := q.current; c != nil && !c.passClaimed && !c.replaced {
		supersede(c, o)
	}
	for _, older := range q.waiting[:len(q.waiting)-1] {
		supersede(older, o)
	}
	q.waiting = []*Order{o}
	return true
}

func (s *Queues) finish(o *Order, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.replaced {
		o.err = err
		close(o.done)
	}
}

// Wait blocks until an order has been carried out, and returns its result. If ctx ends first, the order stays in force, and the
// error describes its progress.
func (s *Queues) Wait(ctx context.Context, o *Order) error {
	for {
		select {
		case <-o.done:
			if o.replacedBy == nil {
				return o.err
			}
			o = o.replacedBy
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return &client.Error{Kind: client.KindTimeout, Message: s.progressText(o)}
		}
	}
}

// progressText describes the progress of an unfinished order for the client.
func (s *Queues) progressText(o *Order) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	effect := o.effectText
	if effect != "" {
		effect = ": " + effect
	}
	switch {
	case o.executed && o.recorded:
		return fmt.Sprintf("the %s is under way%s; it is written, but the data volume has not confirmed that yet", o.Verb, effect)
	case o.executed:
		return fmt.Sprintf("the %s is under way%s; it is not recorded yet, because the data volume has not answered yet; hinit records it when the volume does", o.Verb, effect)
	case o.recorded, o.passClaimed:
		return fmt.Sprintf("the %s is under way, and the supervisor has not answered yet", o.Verb)
	}
	return fmt.Sprintf("the %s waits, because the data volume has not answered yet; hinit records it and carries it out when the volume does, unless it is asked for something else by then", o.Verb)
}

// IsIdle reports whether no order is waiting or being carried out.
func (s *Queues) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues) == 0
}

// UnfinishedOrder is an order that the next program of PID 1 must still carry out after a re-execution.
type UnfinishedOrder struct {
	Verb             client.Verb
	Service, Profile string
	By               *client.Author
}

// Unfinished lists, for each profile, the newest order unless it is both recorded and carried out.
func (s *Queues) Unfinished() (list []UnfinishedOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if n := q.newestOrder(); n != nil && !(n.recorded && n.executed) {
			list = append(list, UnfinishedOrder{n.Verb, n.Service, n.Profile, n.By})
		}
	}
	return list
}
