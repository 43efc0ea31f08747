package control

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"

	"hinit/internal/testkit"
	"hinit/supervisor"
)

func TestStatusLeavesNothingBehindAndIsTold(t *testing.T) {
	var services []*supervisor.Service
	for i := range 100 {
		services = append(services, gateway(fmt.Sprintf("p%03d", i), supervisor.Up))
	}
	var used atomic.Int32
	o := everyone
	o.Used = func() { used.Add(1) }
	s := serve(t, newFakeCore(services...), o)
	ask := func(times int) {
		for range times {
			if _, err := s.client().Status(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask(20) // what is made once is made
	before := live()
	ask(50)
	const most = 128 << 10 // one answer is 50 KB
	testkit.Until(t, "the heap is as small as before", func() bool { return live() < before+most })
	if told := used.Load(); told < 69 || told > 70 { // the last answer may be on its way out of its handler
		t.Errorf("the end of %d requests was told, of 70", told)
	}
}

// live is how much of the heap is alive.
func live() uint64 {
	runtime.GC()
	runtime.GC() // what pools keep is dropped by the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
