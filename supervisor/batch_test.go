package supervisor_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"hinit/internal/proc"
	"hinit/supervisor"
)

// countingSpawner records at each start how many snapshots have been published so far.
type countingSpawner struct {
	instantSpawner
	loop *supervisor.Loop
	last *supervisor.Snapshot
	seen int
}

func (s *countingSpawner) Spawn(spec proc.Spec) (int, error) {
	if now := s.loop.Snapshot(); now != s.last {
		s.last, s.seen = now, s.seen+1
	}
	return s.instantSpawner.Spawn(spec)
}

// A snapshot contains all services. With one snapshot for each registration, the time of a boot would grow with the square of
// the number of services.
func TestManyRegistrationsAreFewSnapshots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, together = 500, 64 // number of services, and how many of them wait in the inbox at a time
		starts := new(countingSpawner)
		l := supervisor.NewLoop(supervisor.Config{Procs: starts, Logs: noLogs{}})
		starts.loop = l
		answers := make(chan error, many)
		for i := range many {
			u := supervisor.Unit{Name: fmt.Sprintf("gateway-p%03d", i), Kind: supervisor.KindGateway, Policy: supervisor.Policy{Grace: 1e9}}
			go func() { answers <- l.Register(context.Background(), u, supervisor.WantUp) }()
		}
		synctest.Wait()
		ended := make(chan int)
		go func() { ended <- l.Run() }()
		for range many {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		if got := len(l.Snapshot().Services); got != many {
			t.Errorf("%d services", got)
		}
		if starts.pid != many || starts.seen > many/together+1 {
			t.Errorf("%d starts were spread over %d snapshots", starts.pid, starts.seen)
		}
		l.Post(supervisor.Shutdown{})
		<-ended
	})
}
