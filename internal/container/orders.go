package container

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/profiles"
	"hinit/supervisor"
)

const (
	// hurryTime is how long a stop waits for its record. Then it is carried out first, and recorded when the data volume answers. A
	// start always waits for its record: its gateway needs the volume, and a spawn in a directory that hangs holds up the supervisor.
	// It is also how long an order waits for its turn before a newer one takes its place.
	hurryTime = time.Second
	// maxWaiting is how many orders of a profile may wait for their turn.
	maxWaiting = 16
)

// orders carries out what operators ask of gateways. An order belongs to this process from the moment it is taken in: it is recorded
// and handed to the supervisor whether or not the client that gave it still waits for the result.
//
// Each profile has a queue of its own, whose orders are carried out one after the other while the volume answers. When it does not,
// the newest order takes the place of those that have waited for a second and that the supervisor has not got yet. So a volume that
// does not answer builds up no work, and the newest order decides in the end, on the disk and in the supervisor alike.
//
// It owns a goroutine for each profile that has orders, and one more while that goroutine waits for the volume.
type orders struct {
	// record writes an order to the volume. sync makes that survive a crash of the machine, or says why it could not be written; it
	// is nil when there is nothing to write. An error means that the order is not to be carried out. Both wait for the disk.
	record func(*order) (sync func() error, err error)
	// act hands an order to the supervisor, and returns when that has taken it in. effect says what followed at once, for people.
	// It does not wait for the disk.
	act func(*order) (effect string, err error)
	// retry is told of an order that was carried out and could not be recorded. It does not block.
	retry func(*order)

	mu     sync.Mutex
	queues map[string]*queue // by profile; those that have orders
}

// queue is what one profile has to do. The mutex of orders guards it.
type queue struct {
	current *order
	waiting []*order      // in the order in which they came
	news    chan struct{} // the newest is another one, or more urgent
}

// order is what an operator asked of one gateway.
type order struct {
	verb             string // start, stop, restart, or unwant
	service, profile string
	since            time.Time     // when it was taken in
	done             chan struct{} // closed at the end

	// The mutex of orders guards what follows.
	replaced bool      // a newer one has taken its place
	hurry    time.Time // when it is carried out without a record; zero for never
	recorded bool      // it is on the volume, or another room tries again until it is
	acting   bool      // it is being handed to the supervisor, or was
	acted    bool      // it was handed to the supervisor, with the result failed
	failed   error
	effect   string
	err      error  // the result of the order
	heir     *order // a newer order that asks for the same and has replaced this one; its result counts
}

// verbUnwant stops wanting a gateway without ending it (s6-svc -Q).
const verbUnwant = "unwant"

// want is what an order makes the desired state of its profile.
func (o *order) want() string {
	if o.verb == "stop" || o.verb == verbUnwant {
		return profiles.Stopped
	}
	return profiles.Running
}

// event is what an order means to the supervisor.
func (o *order) event() supervisor.Event {
	if o.verb == verbUnwant {
		return supervisor.Unwant{Name: o.service}
	}
	return verbEvent(o.verb, o.service)
}

// submit takes an order in. It does not block. When an order that asks for the same has not been handed to the supervisor yet, it
// returns that one. patience is how long the client waits for the result, 0 for no limit: a stop is carried out before it is over.
func (s *orders) submit(verb, service, profile string, patience time.Duration) *order {
	o := &order{verb: verb, service: service, profile: profile, since: time.Now(), done: make(chan struct{})}
	if o.want() == profiles.Stopped {
		wait := hurryTime
		if patience > 0 {
			wait = min(wait, patience/2)
		}
		o.hurry = o.since.Add(wait)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[profile]
	if q == nil {
		q = &queue{waiting: []*order{o}, news: make(chan struct{}, 1)}
		if s.queues == nil {
			s.queues = make(map[string]*queue)
		}
		s.queues[profile] = q
		guard.Go("carrying out orders", func() { s.work(q, profile) })
		return o
	}
	if n := q.newest(); n != nil && n.verb == verb && !n.acting {
		if o.hurry.Before(n.hurry) {
			n.hurry = o.hurry
		}
		o = n
	} else {
		if last := len(q.waiting) - 1; last+1 >= maxWaiting {
			replace(q.waiting[last], o)
			q.waiting = q.waiting[:last]
		}
		q.waiting = append(q.waiting, o)
	}
	select {
	case q.news <- struct{}{}:
	default: // it has not seen the last news yet
	}
	return o
}

func (q *queue) newest() *order {
	if n := len(q.waiting); n > 0 {
		return q.waiting[n-1]
	}
	return q.current
}

// replace ends an order because of a newer one. It needs the mutex.
func replace(o, newer *order) {
	o.replaced = true
	if o.verb == newer.verb {
		o.heir = newer
	} else {
		o.err = &client.Error{Kind: client.KindFailed, Message: fmt.Sprintf("superseded: %s was asked to %s meanwhile", o.service, newer.verb)}
	}
	close(o.done)
}

// work carries out the orders of a profile until there is none. Only its goroutine hands them to the supervisor, so they get there
// in order.
func (s *orders) work(q *queue, profile string) {
	for s.take(q, profile) {
		s.carryOut(q)
	}
}

// take makes the next order the current one. When there is none, the queue is gone.
func (s *orders) take(q *queue, profile string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.current = nil
	for q.current == nil && len(q.waiting) > 0 {
		q.current, q.waiting = q.waiting[0], q.waiting[1:]
		if q.late() {
			replace(q.current, q.newest())
			q.current = nil
		}
	}
	if q.current == nil {
		delete(s.queues, profile)
	}
	return q.current != nil
}

// late says whether the current order is to give way to the newest one. It needs the mutex.
func (q *queue) late() bool {
	return len(q.waiting) > 0 && time.Since(q.current.since) >= hurryTime
}

// carryOut records the current order and hands it to the supervisor.
func (s *orders) carryOut(q *queue) {
	o := q.current
	var sync func() error
	err := s.await(q, begin("recording an order", func() (err error) {
		sync, err = s.record(o)
		return err
	}))
	if err != nil {
		s.finish(o, err)
		return
	}
	if s.outdated(q, o) {
		return
	}
	if sync == nil {
		sync = func() error { return nil }
	}
	synced := begin("syncing the record of an order", sync) // meanwhile the order is carried out; the result waits for both
	s.hand(o)
	err = o.failed
	if unrecorded := s.await(q, synced); unrecorded != nil {
		s.retry(o)
		if err == nil {
			err = fmt.Errorf("the %s is under way, but cannot be recorded, so a restart of the container may undo it: %w", o.verb, unrecorded)
		}
	}
	s.finish(o, err)
}

// begin calls f, which takes its turns at the disk itself, in a goroutine of its own.
func begin(doing string, f func() error) <-chan error {
	result := make(chan error, 1)
	guard.Go(doing, func() { result <- f() })
	return result
}

// await waits for the disk. Meanwhile it carries out the newest order if that has waited for its record long enough.
func (s *orders) await(q *queue, result <-chan error) error {
	for {
		n, wait := s.urgent(q)
		var due <-chan time.Time
		switch {
		case n == nil:
		case wait <= 0:
			s.overtake(q, n)
			s.hand(n)
			continue
		default:
			due = time.After(wait)
		}
		select {
		case err := <-result:
			return err
		case <-q.news:
		case <-due:
		}
	}
}

// urgent returns the newest order and how long it still waits for its record, or nil if it waits as long as that takes.
func (s *orders) urgent(q *queue) (*order, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := q.newest()
	if n.acting || n.replaced || n.hurry.IsZero() {
		return nil, 0
	}
	return n, time.Until(n.hurry)
}

// overtake ends the orders before n that the supervisor has not got: it gets n first.
func (s *orders) overtake(q *queue, n *order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := q.current; o != n && !o.acting && !o.replaced {
		replace(o, n)
	}
	for _, o := range q.waiting {
		if o != n {
			replace(o, n)
		}
	}
	if q.current != n {
		q.waiting = []*order{n}
	}
}

// outdated takes note of the record of the current order. It says whether a newer one has taken its place before anything was done about
// it; that one is recorded next, in the same file.
func (s *orders) outdated(q *queue, o *order) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o.recorded = true
	if !o.replaced && !o.acting && q.late() {
		replace(o, q.newest())
	}
	return o.replaced
}

// hand hands an order to the supervisor, once.
func (s *orders) hand(o *order) {
	s.mu.Lock()
	again := o.acting
	o.acting = true
	s.mu.Unlock()
	if again {
		return
	}
	effect, err := s.act(o)
	s.mu.Lock()
	defer s.mu.Unlock()
	o.acted, o.effect, o.failed = true, effect, err
}

func (s *orders) finish(o *order, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.replaced {
		return
	}
	o.err = err
	close(o.done)
}

// wait returns the result of an order. When ctx ends first, its error says how far the order has come; the order stays in force.
func (s *orders) wait(ctx context.Context, o *order) error {
	for {
		select {
		case <-o.done:
			if o.heir == nil {
				return o.err
			}
			o = o.heir
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return context.Cause(ctx)
			}
			return &client.Error{Kind: client.KindTimeout, Message: s.progress(o)}
		}
	}
}

// progress says how far an order has come that is not done.
func (s *orders) progress(o *order) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	effect := o.effect
	if effect != "" {
		effect = ": " + effect
	}
	switch {
	case o.acted && o.recorded:
		return fmt.Sprintf("the %s is under way%s; it is written, but the data volume has not confirmed that yet", o.verb, effect)
	case o.acted:
		return fmt.Sprintf("the %s is under way%s; it is not recorded yet, because the data volume has not answered yet; hinit records it when the volume does", o.verb, effect)
	case o.recorded, o.acting:
		return fmt.Sprintf("the %s is under way, and the supervisor has not answered yet", o.verb)
	}
	return fmt.Sprintf("the %s waits, because the data volume has not answered yet; hinit records it and carries it out when the volume does, unless it is asked for something else by then", o.verb)
}

// idle says whether there is no order.
func (s *orders) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queues) == 0
}

// unfinished is an order as another image of this process takes it over.
type unfinished struct{ Verb, Service, Profile string }

// unfinished lists the newest order of each profile, if it is not recorded or not carried out.
func (s *orders) unfinished() (list []unfinished) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, q := range s.queues {
		if n := q.newest(); n != nil && !(n.recorded && n.acted) {
			list = append(list, unfinished{n.verb, n.service, n.profile})
		}
	}
	return list
}
