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
		services = append(services, newGateway(fmt.Sprintf("p%03d", i), supervisor.Up))
	}
	var used atomic.Int32
	o := readableByAll
	o.OnRequest = func() { used.Add(1) }
	s := serve(t, newFakeBackend(services...), o)
	ask := func(times int) {
		for range times {
			if _, err := s.client().Status(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	ask(20)
	before := heapInUse()
	ask(50)
	const limit = 128 << 10 // each answer has 50 KB
	testkit.Until(t, "the heap is as small as before", func() bool { return heapInUse() < before+limit })
	if told := used.Load(); told < 69 || told > 70 { // the handler of the last answer may still be running
		t.Errorf("the end of %d requests was told, of 70", told)
	}
}

// heapInUse returns the number of bytes of the heap that are in use.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
