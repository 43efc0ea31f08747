package memwatch

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/config"
	"hinit/supervisor"
)

// TestALimitIsSaidOncePerCrossing, and a restart names what was measured.
func TestALimitIsSaidOncePerCrossing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // of said, last and bytes
		var said []string
		bytes := uint64(10 << 20)
		ended := make(chan struct{})
		snapshot := &supervisor.Snapshot{Services: []*supervisor.Service{
			{Name: "a", State: supervisor.Up, PID: 7, Run: 1, Turned: time.Now()},
			{Name: "free", State: supervisor.Up, PID: 8, Run: 2},
			{Name: "gone", State: supervisor.Down},
		}}
		loop := supervisor.NewLoop(supervisor.Config{})
		var last supervisor.Event
		w := New(Options{
			Snapshot: func() *supervisor.Snapshot { return snapshot }, History: loop.History(), Ended: ended,
			Post: func(e supervisor.Event) {
				mu.Lock()
				defer mu.Unlock()
				last = e
				switch e := e.(type) {
				case supervisor.Remark:
					said = append(said, e.Text)
				case supervisor.Unhealthy:
					said = append(said, "restart "+e.Name+": "+e.Answer)
				}
			},
			Measure: func(mains []int) (out []uint64) {
				if !slices.Equal(mains, []int{7}) {
					t.Errorf("it measures %d", mains)
				}
				mu.Lock()
				defer mu.Unlock()
				return []uint64{bytes}
			},
		})
		w.Set(func(v *supervisor.Service) config.Memory {
			if v.Name == "free" {
				return config.Memory{}
			}
			return config.Memory{Warn: 512 << 20, Restart: 1 << 30}
		}, true)
		step := func(has uint64, want ...string) {
			t.Helper()
			mu.Lock()
			said, bytes = nil, has<<20
			mu.Unlock()
			time.Sleep(Period)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(said, want) {
				t.Errorf("at %d MiB it says %q, not %q", has, said, want)
			}
		}
		step(500)
		if w.Note("a") != "" {
			t.Errorf("the note is %q", w.Note("a"))
		}
		step(600, "memory: 600 MiB is above memory.warn 512 MiB")
		if w.Note("a") != "memory: 600 MiB is above memory.warn 512 MiB" {
			t.Errorf("the note is %q", w.Note("a"))
		}
		step(1229, "restart a: memory: 1.2 GiB of 1.0 GiB")
		if e := last.(supervisor.Unhealthy); e.Run != 1 || e.Park {
			t.Errorf("it is told %+v", e)
		}
		close(ended)
		synctest.Wait()
	})
}
