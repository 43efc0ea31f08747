package runs_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/supervisor"
)

// slowLoop is a supervisor that starts a service at once. The test can start a run while another goroutine takes a
// snapshot.
type slowLoop struct {
	mu         sync.Mutex
	snap       *supervisor.Snapshot
	changed    chan struct{}
	onSnapshot func() // called when the next snapshot is taken
}

func (l *slowLoop) Register(_ context.Context, u supervisor.Unit, _ supervisor.Want) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snap = &supervisor.Snapshot{Services: append(l.snap.Services, &supervisor.Service{Name: u.Name, Kind: u.Kind, State: supervisor.Up, PID: 1})}
	return nil
}

func (l *slowLoop) Do(context.Context, supervisor.Event) error { return nil }
func (l *slowLoop) Post(supervisor.Event)                      {}
func (l *slowLoop) Changed() <-chan struct{}                   { return l.changed }
func (l *slowLoop) Ended() <-chan struct{}                     { return nil }

func (l *slowLoop) Snapshot() *supervisor.Snapshot {
	l.mu.Lock()
	snap, meet := l.snap, l.onSnapshot
	l.onSnapshot = nil
	l.mu.Unlock()
	if meet != nil {
		meet()
	}
	return snap
}

// A run starts while PID 1 compares its runs with an older snapshot. The run must not be reported as gone, because the task
// board would start a second worker beside the living one.
func TestARunThatStartsDuringTheComparisonIsNotLost(t *testing.T) {
	l := &slowLoop{snap: &supervisor.Snapshot{}, changed: make(chan struct{})}
	b := runs.NewTracker()
	met := make(chan struct{})
	l.onSnapshot = func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.Start(context.Background(), runs.StartRequest{Tag: "x", Spec: proc.Spec{Argv: []string{"x"}}})
		}()
		select {
		case <-done:
		case <-time.After(300 * time.Millisecond):
		}
		close(met)
	}
	b.Attach(l)
	<-met
	for range 200 {
		list, _ := b.RunsSince(0)
		if len(list) == 1 {
			if list[0].End == nil {
				time.Sleep(50 * time.Millisecond)
				list, _ = b.RunsSince(0)
			}
			if list[0].End != nil {
				t.Fatalf("a run that is still alive has ended: %+v", list[0].End)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the run has not started")
}
