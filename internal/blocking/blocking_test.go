package blocking_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hinit/internal/blocking"
)

// Of 200 concurrent callers of blocking.Do on one pool, at most as many may run as the pool has turns. In the end all must
// have run.
func TestManyCallersTakeTurns(t *testing.T) {
	var inside, most, done atomic.Int32
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			_ = blocking.Do(blocking.Logs, func() error {
				n := inside.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				time.Sleep(100 * time.Microsecond)
				inside.Add(-1)
				done.Add(1)
				return nil
			})
		})
	}
	wg.Wait()
	if done.Load() != 200 || most.Load() > int32(blocking.TotalTurns()) || most.Load() > 3 {
		t.Errorf("%d calls were made, at most %d at once", done.Load(), most.Load())
	}
}

// When calls that hang have all turns of a pool, a further call must return an error in time and must never run later. Calls
// on another pool must still run.
func TestAShareThatHangsAnswersBusy(t *testing.T) {
	free, begun := make(chan struct{}), make(chan struct{}, blocking.TotalTurns())
	var hung sync.WaitGroup
	for range blocking.TotalTurns() {
		hung.Go(func() { _ = blocking.Do(blocking.Volume, func() error { begun <- struct{}{}; <-free; return nil }) })
	}
	defer hung.Wait()
	defer close(free)
	for range blocking.VolumeTurns() {
		<-begun
	}
	slow := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		return blocking.Within(ctx, blocking.Runtime, "a test", func() error { cancel(); <-free; return nil })
	}
	if err := slow(); !errors.Is(err, blocking.ErrTimedOut) || errors.Is(err, blocking.ErrBusy) {
		t.Errorf("a call that hangs: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := blocking.Within(ctx, blocking.Volume, "a test", func() error { t.Error("called after busy"); return nil })
	if !errors.Is(err, blocking.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a pool that is full: %v", err)
	}
	want := errors.New("an answer")
	if err := blocking.Within(t.Context(), blocking.Foreign, "a test", func() error { return want }); !errors.Is(err, want) {
		t.Errorf("another pool: %v", err)
	}
}
