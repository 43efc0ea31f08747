package program

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/sandbox"
	"hinit/sandbox/policy"
)

// notifyingEngine is an engine that reports a change only when the test wants it, and counts its calls.
type notifyingEngine struct {
	sandbox.FullEngine // Every method that quiet does not define panics.
	mu                 sync.Mutex
	containers         []sandbox.Container
	listCalls          int
	sendsNoEvents      bool
	changed            func()
}

func (q *notifyingEngine) Volumes(context.Context, string, map[string]string) ([]sandbox.Volume, error) {
	return nil, nil
}

func (q *notifyingEngine) List(_ context.Context, labels map[string]string) ([]sandbox.Container, error) {
	if _, ofAgents := labels[sandbox.LabelClient]; !ofAgents {
		return nil, nil // The second list of the same scan.
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.listCalls++
	return q.containers, nil
}

func (q *notifyingEngine) Remove(context.Context, string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.containers = nil
	return nil
}

func (q *notifyingEngine) Watch(ctx context.Context, _ map[string]string, began, changed func()) error {
	if q.sendsNoEvents {
		return errors.New("it doesn't tell")
	}
	q.mu.Lock()
	q.changed = changed
	q.mu.Unlock()
	began()
	<-ctx.Done()
	return ctx.Err()
}

// callCounts returns the number of lists since its last call, and the number of containers.
func (q *notifyingEngine) callCounts() (lists, containers int) {
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	lists, q.listCalls = q.listCalls, 0
	return lists, len(q.containers)
}

// startCleanUp runs the removal of unused sandboxes in virtual time.
func startCleanUp(t *testing.T, q *notifyingEngine) *service {
	t.Helper()
	h := &service{
		engine: q, gate: &policy.Gate{}, opts: sandbox.DefaultOptions(), log: func(string, ...any) {}, tenants: map[tenantKey]*tenant{},
		startedAt: time.Now(), scanRequests: make(chan struct{}, 1),
	}
	h.releaseTimer = time.AfterFunc(releaseAfter, h.releaseMemory)
	h.opts.Lifetime = 5 * time.Minute
	opts := h.opts
	opts.State, opts.HelperPath = t.TempDir(), "/proc/self/exe"
	var err error
	if h.sweeper, err = sandbox.NewManager(q, opts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { h.cleanUp(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// TestNothingHappens checks that an idle service sleeps until a sandbox is old enough to be
// removed, and afterwards for ever.
func TestNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := map[string]string{"hinit-owner": "1", sandbox.LabelClient: strconv.Itoa(1<<30) + ".1"}
		q := &notifyingEngine{containers: []sandbox.Container{{ID: "dead agent's", Labels: gone, State: sandbox.Running, Created: time.Now()}}}
		h := startCleanUp(t, q)
		time.Sleep(time.Minute)
		if n, left := q.callCounts(); n == 0 || left != 1 {
			t.Errorf("at the beginning it looked %d times, and %d containers are left", n, left)
		}
		time.Sleep(3 * time.Minute)
		if n, _ := q.callCounts(); n != 0 {
			t.Errorf("it looked %d times before anything was due", n)
		}
		time.Sleep(2 * time.Minute)
		if n, left := q.callCounts(); n != 1 || left != 0 {
			t.Errorf("when the idle window was over it looked %d times, and %d containers are left", n, left)
		}
		time.Sleep(20 * time.Minute)
		q.callCounts() // A later scan removes leftovers of removed containers from the volume.
		time.Sleep(24 * time.Hour)
		if n, _ := q.callCounts(); n != 0 {
			t.Errorf("it looked %d times in a day in which nothing happened", n)
		}
		for range 100 {
			q.changed()
		}
		time.Sleep(scanInterval)
		if n, _ := q.callCounts(); n < 1 || n > 2 {
			t.Errorf("after many changes at once it looked %d times", n)
		}
		h.releaseTimer.Reset(releaseAfter) // The timer runs as after a request; when it fires, the service releases memory.
		time.Sleep(24 * time.Hour)
		if n, _ := q.callCounts(); n != 1 {
			t.Errorf("it looked %d times afterwards, and not once for what they have left", n)
		}
	})
}

// TestAnEngineWithoutEventsIsScanned checks that an engine without events is scanned once a minute.
func TestAnEngineWithoutEventsIsScanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &notifyingEngine{sendsNoEvents: true}
		startCleanUp(t, q)
		time.Sleep(10 * time.Minute)
		q.callCounts()
		time.Sleep(time.Hour)
		if n, _ := q.callCounts(); n < 58 || n > 62 {
			t.Errorf("it was asked %d times in an hour", n)
		}
	})
}

// fillingEngine is an engine with two containers through which services fill a volume.
type fillingEngine struct {
	notifyingEngine
	removed []string
}

func (f *fillingEngine) List(_ context.Context, labels map[string]string) ([]sandbox.Container, error) {
	if labels[policy.LabelOwner] != "gate" {
		return nil, nil
	}
	return []sandbox.Container{{ID: "old", Created: time.Now().Add(-25 * time.Hour)}, {ID: "in use", Created: time.Now().Add(-time.Minute)}}, nil
}

func (f *fillingEngine) Remove(_ context.Context, id string) error {
	f.removed = append(f.removed, id)
	return nil
}

// TestAKilledServiceLeftAContainerForEver checks that a service removes the container with which a
// killed service was filling a volume.
func TestAKilledServiceLeftAContainerForEver(t *testing.T) {
	q := &fillingEngine{}
	h := &service{engine: q, gate: &policy.Gate{}, opts: sandbox.DefaultOptions(), log: func(string, ...any) {}}
	h.removeUnusable(t.Context())
	if !slices.Equal(q.removed, []string{"old"}) {
		t.Errorf("it has removed %q", q.removed)
	}
}
