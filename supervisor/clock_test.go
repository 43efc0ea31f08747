package supervisor

import (
	"testing"
	"time"
	"unsafe"
)

// afterClockStep returns what time.Now returns after the wall clock was set by `by`: another wall time, and the same monotonic
// time. Package time defines the layout (time.go, type Time). The top bit of wall says that ext is monotonic, and the
// 33 bits below it are seconds since 1885.
func afterClockStep(t *testing.T, now time.Time, by time.Duration) time.Time {
	t.Helper()
	before := now
	fields := (*struct {
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&now))
	const hasMonotonic, nsecBits = 1 << 63, 30
	if fields.wall&hasMonotonic == 0 {
		t.Fatal("there is no monotonic time in it")
	}
	fields.wall += uint64(by/time.Second) << nsecBits
	if got := now.Round(0).Sub(before.Round(0)); got != by.Truncate(time.Second) || now.Sub(before) != 0 {
		t.Fatalf("a step of %v became one of %v, and %v of monotonic time", by, got, now.Sub(before))
	}
	return now
}

// Neither a step of the wall clock in either direction nor a suspended machine may move a deadline. Deadlines count
// monotonic time.
func TestStepsOfTheClockMoveNoDeadline(t *testing.T) {
	const tenYears = 10 * 365 * 24 * time.Hour
	for _, step := range []time.Duration{tenYears, -tenYears, time.Hour, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			m := Machine{ShutdownBudget: 8 * time.Second}
			now := time.Now()
			run := func(e Event) []Action {
				var all []Action
				for _, a := range m.Step(now, e) {
					all = append(all, a)
					if s, ok := a.(Spawn); ok {
						m.Step(now, Spawned{s.Name, int(100 + s.Run)})
					}
				}
				return all
			}
			state := func() State { return m.services["a"].state }
			run(Add{Name: "a", Policy: new(testPolicy), Want: WantUp})
			run(Exited{Name: "a", PID: m.services["a"].pid, Code: 1})
			if state() != Backoff {
				t.Fatalf("it is %s", state())
			}
			wait := m.services["a"].deadline.Sub(now)
			now = afterClockStep(t, now, step)
			run(Tick{})
			if state() != Backoff {
				t.Fatalf("the step made it %s", state())
			}
			now = now.Add(wait - time.Millisecond)
			if run(Tick{}); state() != Backoff {
				t.Fatalf("it is %s a millisecond too early", state())
			}
			now = now.Add(time.Millisecond)
			if run(Tick{}); state() != Up {
				t.Fatalf("it is %s when its time has come", state())
			}

			run(Stop{"a"})
			now = afterClockStep(t, now, -step)
			if run(Tick{}); state() != Stopping {
				t.Fatalf("the step back made it %s", state())
			}
			now = now.Add(testPolicy.Grace)
			if run(Tick{}); state() != Killing {
				t.Fatalf("it is %s after its grace", state())
			}

			run(Shutdown{Reason: "test"})
			begin := now
			now = afterClockStep(t, now, step)
			for range 100 {
				at, ok := m.Deadline()
				if !ok {
					break
				}
				if at.Sub(now) > 0 {
					now = now.Add(at.Sub(now))
				}
				run(Tick{})
			}
			if took := now.Sub(begin); took > m.ShutdownBudget {
				t.Errorf("the end took %v", took)
			}
		})
	}
}
