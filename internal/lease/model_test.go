package lease

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/fsutil"
)

var schedules = flag.Int("schedules", 24, "how many random schedules the model is put through")

var firstSeed = flag.Uint64("seed", 0, "the first schedule follows from it, the others from the numbers after it")

// world is a volume in virtual time, that several machines reach over a network, or several containers of one machine.
type world struct {
	begin time.Time
	slow  time.Duration // an operation takes up to twice this
	local bool

	mu     sync.Mutex
	rng    *rand.Rand
	files  map[string][]byte
	over   bool
	locker *node     // who has the lock of a local volume
	frozen time.Time // until when nothing can be written
	lives  int       // containers that were started
	looks  int       // at the names of the records
	deaf   bool      // the kernel tells nobody of changes
	heard  []*heard
}

// heard is a notifier of a node.
type heard struct {
	n    *node
	c    chan struct{}
	many uint64
}

// put writes a record, of which the kernel tells everybody who listens.
func (w *world) put(name string, raw []byte) {
	w.files[name] = raw
	for _, h := range w.heard {
		h.many++
		go func() {
			h.n.gate()
			select {
			case h.c <- struct{}{}:
			default:
			}
		}()
	}
}

func (n *node) notify() (notifier, error) {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	if n.w.deaf {
		return nil, errors.New("there are no notifications to be had")
	}
	h := &heard{n: n, c: make(chan struct{}, 1)}
	n.w.heard = append(n.w.heard, h)
	return h, nil
}

func (h *heard) told() <-chan struct{} { return h.c }
func (h *heard) ended() bool           { return false }

func (h *heard) changes() uint64 {
	h.n.w.mu.Lock()
	defer h.n.w.mu.Unlock()
	return h.many
}

func (h *heard) pending(seen uint64) bool { return h.changes() != seen }

func (h *heard) close() {
	h.n.w.mu.Lock()
	defer h.n.w.mu.Unlock()
	h.n.w.heard = slices.DeleteFunc(h.n.w.heard, func(other *heard) bool { return other == h })
}

func (w *world) random(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.rng.Int64N(int64(d) + 1))
}

// node is an init on a machine of its own.
type node struct {
	w         *world
	container string
	lease     *Lease
	cancel    context.CancelFunc

	mu       sync.Mutex
	paused   chan struct{} // nil while it runs
	dead     bool
	resumed  time.Time
	hung     time.Time // its way to the volume is cut until then
	asked    bool      // the first question has an answer, be it that there is none
	serving  bool
	eligible time.Time // since when it could serve
}

// gate holds everything of a node up that is paused or dead.
func (n *node) gate() {
	for {
		n.mu.Lock()
		paused := n.paused
		n.mu.Unlock()
		if paused == nil {
			return
		}
		<-paused
	}
}

var errOver = errors.New("the test is over")

// op is one operation: its effect comes when the network lets it, whatever has become of the node by then.
func (n *node) op(effect func()) error {
	n.gate()
	n.w.mu.Lock()
	over := n.w.over
	n.w.mu.Unlock()
	if over {
		return errOver
	}
	n.mu.Lock()
	cut := time.Until(n.hung)
	n.mu.Unlock()
	time.Sleep(max(cut, 0) + n.w.random(n.w.slow))
	n.w.mu.Lock()
	effect()
	n.w.mu.Unlock()
	time.Sleep(n.w.random(n.w.slow))
	n.gate()
	return nil
}

// change is an operation that waits while the volume is frozen.
func (n *node) change(effect func()) error {
	return n.op(func() {
		for n.w.frozen.After(time.Now()) && !n.w.over {
			thaw := time.Until(n.w.frozen)
			n.w.mu.Unlock()
			time.Sleep(thaw)
			n.w.mu.Lock()
		}
		n.mu.Lock()
		dead := n.dead
		n.mu.Unlock()
		if !dead || !n.w.local { // a process that is killed while it waits for its own kernel writes nothing
			effect()
		}
	})
}

func (n *node) lock() (io.Closer, error) {
	if !n.w.local {
		return nil, fsutil.ErrNotLocal
	}
	got := false
	err := n.op(func() {
		n.mu.Lock()
		dead := n.dead
		n.mu.Unlock()
		if got = n.w.locker == nil && !dead; got {
			n.w.locker = n
		}
	})
	switch {
	case err != nil:
		return nil, err
	case !got:
		return nil, fsutil.ErrLocked
	}
	return lockOf{n}, nil
}

type lockOf struct{ n *node }

func (l lockOf) Close() error {
	l.n.w.mu.Lock()
	defer l.n.w.mu.Unlock()
	if l.n.w.locker == l.n {
		l.n.w.locker = nil
	}
	return nil
}

func (n *node) read(name string) (raw []byte, err error) {
	err = n.op(func() { raw = slices.Clone(n.w.files[name]) })
	return raw, err
}

func (n *node) write(name string, raw []byte) error {
	return n.change(func() { n.w.put(name, slices.Clone(raw)) })
}

func (n *node) claim(name string, raw []byte) (err error) {
	made := false
	failed := n.change(func() {
		if _, there := n.w.files[name]; there {
			err = fs.ErrExist
			return
		}
		n.w.put(name, nil)
		made = true
	})
	if made && failed == nil {
		failed = n.change(func() { n.w.put(name, slices.Clone(raw)) })
	}
	return errors.Join(err, failed)
}

func (n *node) highest() (last uint64, err error) {
	err = n.op(func() {
		n.w.looks++
		for name := range n.w.files {
			last = max(last, epochOf(name))
		}
	})
	return last, err
}

func (n *node) sweep(below uint64) {
	_ = n.change(func() {
		maps.DeleteFunc(n.w.files, func(name string, _ []byte) bool { return name != current && epochOf(name) < below })
	})
}

// after is a timer that a paused node does not see.
func (n *node) after(d time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	go func() {
		time.Sleep(d)
		n.gate()
		c <- time.Now()
	}()
	return c
}

func (w *world) boot(container string) *node {
	w.mu.Lock()
	w.lives++
	lives := w.lives
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{w: w, container: container, cancel: cancel, eligible: time.Now()}
	self := Holder{Boot: fmt.Sprintf("life%d", lives), Host: container, Machine: "m", Container: container, PIDSpace: uint64(lives)}
	e := env{
		now: func() time.Duration { return time.Since(w.begin) }, after: n.after, run: func(f func()) { go f() },
		startOf: func(int) string { return "" },
	}
	n.lease = newLease("/volume", self, n, e, func(string) {})
	go n.live(ctx)
	return n
}

// live is what a container with HINIT_STANDBY does with its lease: it asks at its boot until there is an answer, and then waits.
func (n *node) live(ctx context.Context) {
	patience := UntilKnown
	for {
		err := n.lease.Acquire(ctx, patience)
		n.mu.Lock()
		n.asked = true
		n.mu.Unlock()
		switch {
		case err == nil:
			patience = UntilTaken
		case errors.Is(err, ErrSlow):
			select {
			case <-n.after(time.Second):
			case <-ctx.Done():
			}
			continue
		case errors.Is(err, ErrElsewhere) && patience == UntilKnown:
			patience = UntilTaken
			continue
		default:
			return
		}
		n.mu.Lock()
		n.serving = true
		n.mu.Unlock()
		lost := n.lease.Lost()
		if lost != nil {
			select {
			case <-lost:
			case <-ctx.Done():
				return
			}
		}
		n.mu.Lock()
		n.serving = false
		n.mu.Unlock()
	}
}

func (n *node) pause() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused == nil {
		n.paused = make(chan struct{})
	}
}

func (n *node) resume() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paused != nil {
		close(n.paused)
		n.paused, n.resumed, n.eligible = nil, time.Now(), time.Now()
	}
}

func (n *node) kill() {
	n.pause()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead, n.serving = true, false
	_ = lockOf{n}.Close()
}

// look says whether a node runs what the lease is for, and whether it may start more.
func (n *node) look() (runs, may, candidate bool, since time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.dead || n.paused != nil {
		return false, false, false, time.Time{}
	}
	may = n.asked && n.lease.Check() == nil
	return n.serving && time.Since(n.resumed) > retakeTime+100*time.Millisecond, may, time.Now().After(n.hung), n.eligible
}

// steady reports whether a node has lived all the time and was never paused.
func (n *node) steady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.dead && n.paused == nil && n.resumed.IsZero()
}

// what can befall a world.
type weather struct{ local, deaf, kill, pause, hang, freeze bool }

func model(t *testing.T, seed uint64, many int, slow time.Duration, what weather) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{begin: time.Now(), slow: slow, local: what.local, deaf: what.deaf, rng: rand.New(rand.NewPCG(seed, 1)), files: map[string][]byte{}}
		rng := rand.New(rand.NewPCG(seed, 2))
		var all []*node
		nodes := make([]*node, many)
		for i := range nodes {
			nodes[i] = w.boot(fmt.Sprintf("c%d", i))
			all = append(all, nodes[i])
		}
		defer func() {
			w.mu.Lock()
			w.over = true
			w.mu.Unlock()
			for _, n := range all {
				n.cancel()
				n.resume()
			}
			time.Sleep(time.Minute)
			for _, n := range all {
				n.lease.lose(errOver) // on a local volume nothing else ends what keeps it
			}
			time.Sleep(time.Minute)
		}()
		idle, disturbed := time.Now(), time.Now()
		next := time.Now()
		served := 0
		var server *node
		for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			synctest.Wait()
			runs, may := 0, 0
			waited := time.Duration(0)
			w.mu.Lock()
			frozen := w.frozen.After(time.Now())
			w.mu.Unlock()
			if frozen { // nobody can take it: it goes on from the end of that
				disturbed = time.Now()
			}
			before := server
			for _, n := range nodes {
				r, m, candidate, since := n.look()
				if r {
					runs++
					server = n
				}
				if m {
					may++
				}
				if candidate {
					waited = max(waited, time.Since(since))
				}
			}
			if runs > 1 || may > 1 {
				t.Fatalf("seed %d, %v: %d run and %d may start at the same time\n%s", seed, time.Since(w.begin), runs, may, bytes.TrimSpace(w.files[current]))
			}
			if what.local && runs == 1 && before != nil && server != before && before.steady() {
				t.Fatalf("seed %d, %v: %s has taken the lease from %s, which was never paused\n%s", seed, time.Since(w.begin), server.container, before.container, bytes.TrimSpace(w.files[current]))
			}
			if runs == 1 {
				idle = time.Now()
				served++
			}
			if still := min(time.Since(idle), time.Since(disturbed), waited); still > 15*time.Second+20*slow {
				t.Fatalf("seed %d, %v: nobody has served for %v\n%s", seed, time.Since(w.begin), still, bytes.TrimSpace(w.files[current]))
			}
			if time.Now().Before(next) {
				continue
			}
			next = time.Now().Add(time.Duration(rng.Int64N(int64(12 * time.Second))))
			i := rng.IntN(many)
			n := nodes[i]
			disturbed = time.Now()
			deeds := 3
			if what.freeze {
				deeds = 4
			}
			switch rng.IntN(deeds) {
			case 3:
				w.mu.Lock()
				if !w.frozen.After(time.Now()) {
					w.frozen = time.Now().Add(time.Duration(rng.Int64N(int64(40 * time.Second))))
				}
				w.mu.Unlock()
			case 0:
				if what.kill {
					n.kill()
					nodes[i] = w.boot(n.container)
					all = append(all, nodes[i])
				}
			case 1:
				if what.pause {
					n.pause()
					for _, other := range nodes { // some pauses end
						if rng.IntN(2) == 0 && !other.dead {
							other.resume()
						}
					}
				}
			case 2:
				if what.hang {
					n.mu.Lock()
					n.hung = time.Now().Add(time.Duration(rng.Int64N(int64(25 * time.Second))))
					n.eligible = n.hung
					n.mu.Unlock()
				}
				for _, n := range nodes {
					n.resume()
				}
			}
		}
		least := 200
		if what.freeze {
			least = 20 // a frozen volume that nobody has yet can't be taken
		}
		if served < least {
			t.Errorf("seed %d: somebody served in %d looks only", seed, served)
		}
	})
}

// However many inits of one machine share a local volume, are killed and paused, and whenever the volume is frozen: at most one runs
// what the lease is for, somebody does while somebody could, and nobody that was not paused loses it.
func TestOneServesALocalVolume(t *testing.T) {
	t.Parallel() // it waits
	eachSchedule(t, func(seed uint64, many int) {
		slow := []time.Duration{0, time.Millisecond, 50 * time.Millisecond}[seed/3%3]
		model(t, seed, many, slow, weather{local: true, deaf: seed%11 < 4, kill: seed%2 == 0 || seed%5 == 0, pause: seed%2 == 1 || seed%7 == 0, freeze: seed%4 > 1})
	})
}

// However many inits share a volume, are killed, paused and cut off from it: at most one runs what the lease is for, and somebody
// does while somebody could.
func TestOneServesAndSomebodyDoes(t *testing.T) {
	t.Parallel() // it waits
	eachSchedule(t, func(seed uint64, many int) {
		slow := []time.Duration{time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}[seed/3%3]
		model(t, seed, many, slow, weather{kill: seed%2 == 0 || seed%5 == 0, pause: seed%2 == 1 || seed%7 == 0, hang: seed%4 > 1})
	})
}

// eachSchedule runs a model for one seed after the other, with 2, 3 or 10 inits, until one fails.
func eachSchedule(t *testing.T, run func(seed uint64, many int)) {
	t.Helper()
	first := *firstSeed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for seed := first; seed < first+uint64(*schedules) && !t.Failed(); seed++ {
		run(seed, []int{2, 3, 10}[seed%3])
	}
}

// A holder of a local volume that nobody waits for writes nothing, and hardly looks where the kernel tells of changes.
func TestAQuietLocalVolumeIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{begin: time.Now(), local: true, rng: rand.New(rand.NewPCG(1, 1)), files: map[string][]byte{}}
		n := w.boot("c0")
		time.Sleep(time.Minute)
		before := maps.Clone(w.files)
		looked := func() int {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.looks
		}
		looks := looked()
		time.Sleep(time.Hour)
		synctest.Wait()
		if many := looked() - looks; many > int(time.Hour/idleEvery)+1 {
			t.Errorf("it has looked %d times in an hour", many)
		}
		if n.lease.Status().State != Held || !maps.EqualFunc(before, w.files, bytes.Equal) {
			t.Errorf("%+v, %s", n.lease.Status(), w.files[epochName(1)])
		}
		n.cancel()
		n.lease.Release(context.Background())
		time.Sleep(time.Minute)
	})
}
