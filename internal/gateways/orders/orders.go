// Package orders carries out what operators ask of gateways, whether or not the client still waits.
//
// Each profile has a queue, whose orders are carried out one after the other while the volume answers. When it does not, the newest
// order replaces those that have waited for a second and that the supervisor has not got. So the newest order decides, on the disk
// and in the supervisor.
//
// It owns a goroutine for each profile that has orders, and another one while that waits for a sync.
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
	// stopPatience is how long a stop waits for its record before it is carried out without. A start always waits for its record,
	// because a spawn in a directory that hangs holds up the supervisor. An order waits as long for its turn before a newer one
	// replaces it.
	stopPatience = time.Second
	// maxWaiting is how many orders of a profile may wait for their turn.
	maxWaiting = 16
)

// Carrier does what an order takes.
type Carrier interface {
	// Record writes an order to the volume; after an error the order is not carried out. sync makes the write survive a crash of
	// the machine. Both wait for the disk.
	Record(o *Order) (sync func() error, err error)
	// Act hands an order to the supervisor and returns when that has taken it in. effect is what followed at once, for people. It
	// does not wait for the disk.
	Act(o *Order) (effect string, err error)
	// Retry is told of an order that was carried out and could not be recorded. It does not block.
	Retry(o *Order)
}

// Queues are the orders of all profiles. Their methods may be called from any goroutine.
type Queues struct {
	carrier Carrier

	mu     sync.Mutex
	queues map[string]*queue // by profile; those that have orders
}

// New makes Queues without orders. carrier does what they take.
func New(carrier Carrier) *Queues { return &Queues{carrier: carrier, queues: make(map[string]*queue)} }

// queue holds the orders of one profile. The mutex of Queues guards it.
type queue struct {
	current *Order
	waiting []*Order      // oldest first
	turn    chan struct{} // has room for who hands an order to the supervisor: one after the other
}

// Order is what an operator asked of one gateway.
type Order struct {
	Verb             client.Verb
	Service, Profile string
	By               *client.By    // who gave it, nil when that is unknown; root where root has given it too
	since            time.Time     // when it was taken in
	done             chan struct{} // closed at the end

	// The mutex of Queues guards what follows.
	actBy      time.Time // when it is carried out even without a record; zero for never
	recorded   bool      // it is on the volume, or will be tried again until it is
	acting     bool      // it is being handed to the supervisor, or was
	acted      bool      // it was handed to the supervisor, with the result failed and effect
	failed     error
	effect     string
	replaced   bool   // a newer order has taken its place
	replacedBy *Order // that order, if it asks for the same; its result counts then
	err        error  // the result
}

// Unwant is the verb that makes a gateway unwanted without ending it (s6-svc -Q).
const Unwant client.Verb = "unwant"

// Want is what an order makes the desired state of its profile.
func (o *Order) Want() string {
	if o.Verb == client.VerbStop || o.Verb == Unwant {
		return profiles.Stopped
	}
	return profiles.Running
}

// Submit takes an order in and does not block. It returns the newest order where that asks for the same and has not reached the
// supervisor. patience is how long the client waits, 0 for no limit: a stop is carried out before. by is who gives the order.
func (s *Queues) Submit(verb client.Verb, service, profile string, patience time.Duration, by *client.By) *Order {
	o := &Order{Verb: verb, Service: service, Profile: profile, By: by, since: time.Now(), done: make(chan struct{})}
	if o.Want() == profiles.Stopped {
		wait := stopPatience
		if patience > 0 {
			wait = min(wait, patience/2)
		}
		o.actBy = o.since.Add(wait)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[profile]
	if q == nil {
		q = &queue{waiting: []*Order{o}, turn: make(chan struct{}, 1)}
		s.queues[profile] = q
		s.actInTime(q, o)
		guard.Go("carrying out orders", func() {
			for s.next(q, profile) {
				s.carryOut(q)
			}
		})
		return o
	}
	if n := q.newest(); n != nil && n.Verb == verb && !n.acting {
		if o.actBy.Before(n.actBy) {
			n.actBy = o.actBy
			s.actInTime(q, n)
		}
		if by != nil && by.UID == 0 {
			n.By = by
		}
		o = n
	} else {
		s.actInTime(q, o)
		if last := len(q.waiting) - 1; last+1 >= maxWaiting {
			replace(q.waiting[last], o)
			q.waiting = q.waiting[:last]
		}
		q.waiting = append(q.waiting, o)
	}
	return o
}

// actInTime sees to it that an order is handed to the supervisor when it has waited long enough for its record, if it is the newest
// then.
func (s *Queues) actInTime(q *queue, o *Order) {
	if !o.actBy.IsZero() {
		time.AfterFunc(time.Until(o.actBy), guard.Func("carrying out an order", func() { s.handOver(q, o, true) }))
	}
}

func (q *queue) newest() *Order {
	if n := len(q.waiting); n > 0 {
		return q.waiting[n-1]
	}
	return q.current
}

// givesWay reports whether the current order has waited so long that the newest one takes its place. It needs the mutex.
func (q *queue) givesWay() bool {
	return len(q.waiting) > 0 && time.Since(q.current.since) >= stopPatience
}

// replace ends an order because of a newer one. It needs the mutex.
func replace(o, newer *Order) {
	o.replaced = true
	if o.Verb == newer.Verb {
		o.replacedBy = newer
	} else {
		o.err = &client.Error{Kind: client.KindFailed, Message: fmt.Sprintf("superseded: %s was asked to %s meanwhile", o.Service, newer.Verb)}
	}
	close(o.done)
}

// next makes the next order the current one. When there is none, it removes the queue and returns false.
func (s *Queues) next(q *queue, profile string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.current = nil
	for q.current == nil && len(q.waiting) > 0 {
		q.current, q.waiting = q.waiting[0], q.waiting[1:]
		if q.givesWay() {
			replace(q.current, q.newest())
			q.current = nil
		}
	}
	if q.current == nil {
		delete(s.queues, profile)
	}
	return q.current != nil
}

// carryOut records the current order and hands it to the supervisor. Only the goroutine of the queue does so, one order after the other.
func (s *Queues) carryOut(q *queue) {
	o := q.current
	sync, err := s.carrier.Record(o)
	if err != nil {
		s.finish(o, err)
		return
	}
	if s.setRecorded(q, o) {
		return
	}
	synced := begin("syncing the record of an order", sync) // meanwhile the order is carried out; the result waits for both
	s.handOver(q, o, false)
	unrecorded := <-synced
	err = o.failed
	if unrecorded != nil {
		s.carrier.Retry(o)
		if err == nil {
			err = fmt.Errorf("the %s is under way, but cannot be recorded, so a restart of the container may undo it: %w", o.Verb, unrecorded)
		}
	}
	s.finish(o, err)
}

// begin calls f, which waits for the disk, in a goroutine of its own.
func begin(doing string, f func() error) <-chan error {
	result := make(chan error, 1)
	guard.Go(doing, func() { result <- f() })
	return result
}

// setRecorded notes that the current order is recorded. It returns true when a newer order has replaced it; the newer one is
// recorded next.
func (s *Queues) setRecorded(q *queue, o *Order) (replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.recorded = true
	if !o.replaced && !o.acting && q.givesWay() {
		replace(o, q.newest())
	}
	return o.replaced
}

// handOver hands an order to the supervisor, once. overtakes says that its time is over: then it goes before older orders, and only
// if it is the newest.
func (s *Queues) handOver(q *queue, o *Order, overtakes bool) {
	q.turn <- struct{}{}
	defer func() { <-q.turn }()
	if !s.begins(q, o, overtakes) {
		return
	}
	effect, err := s.carrier.Act(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	o.acted, o.effect, o.failed = true, effect, err
}

// begins reports whether an order is to be handed over now. One that overtakes ends those before it that the supervisor has not got.
func (s *Queues) begins(q *queue, o *Order, overtakes bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.acting || o.replaced || overtakes && q.newest() != o {
		return false
	}
	o.acting = true
	if !overtakes || q.current == o {
		return true
	}
	if c := q.current; c != nil && !c.acting && !c.replaced {
		replace(c, o)
	}
	for _, older := range q.waiting[:len(q.waiting)-1] {
		replace(older, o)
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

// Wait returns the result of an order. When ctx ends first, its error says how far the order has come; the order stays in force.
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
			return &client.Error{Kind: client.KindTimeout, Message: s.progress(o)}
		}
	}
}

// progress says how far an order has come that is not done.
func (s *Queues) progress(o *Order) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	effect := o.effect
	if effect != "" {
		effect = ": " + effect
	}
	switch {
	case o.acted && o.recorded:
		return fmt.Sprintf("the %s is under way%s; it is written, but the data volume has not confirmed that yet", o.Verb, effect)
	case o.acted:
		return fmt.Sprintf("the %s is under way%s; it is not recorded yet, because the data volume has not answered yet; hinit records it when the volume does", o.Verb, effect)
	case o.recorded, o.acting:
		return fmt.Sprintf("the %s is under way, and the supervisor has not answered yet", o.Verb)
	}
	return fmt.Sprintf("the %s waits, because the data volume has not answered yet; hinit records it and carries it out when the volume does, unless it is asked for something else by then", o.Verb)
}

// Idle reports whether there is no order.
func (s *Queues) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues) == 0
}

// Unfinished is an order as the next program of PID 1 takes it over.
type Unfinished struct {
	Verb             client.Verb
	Service, Profile string
	By               *client.By
}

// Unfinished lists the newest order of each profile, if it is not recorded or not carried out.
func (s *Queues) Unfinished() (list []Unfinished) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if n := q.newest(); n != nil && !(n.recorded && n.acted) {
			list = append(list, Unfinished{n.Verb, n.Service, n.Profile, n.By})
		}
	}
	return list
}
