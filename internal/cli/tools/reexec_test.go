package tools

import (
	"testing"
	"time"
)

// hinit reexec must recognize its own binary even if the program started seconds after the engine had made the process,
// as on a busy machine.
func TestAnInitIsKnownThatWasStartedSlowly(t *testing.T) {
	for _, c := range []struct {
		age, since time.Duration
		want       bool
	}{
		{time.Minute, time.Minute, true},
		{70 * time.Second, time.Minute, true},
		{time.Minute, 61 * time.Second, true}, // the clocks differ slightly
		{time.Minute, 70 * time.Second, false},
		{time.Hour, time.Minute, false},
	} {
		if got := agesMatch(c.age, c.since); got != c.want {
			t.Errorf("process %v, init %v: %v", c.age, c.since, got)
		}
	}
}
