package tools

import (
	"testing"
	"time"
)

// A busy engine started hinit seconds after it had made the process, and reexec did not know its own binary again.
func TestAnInitIsKnownThatWasStartedSlowly(t *testing.T) {
	for _, c := range []struct {
		age, since time.Duration
		want       bool
	}{
		{time.Minute, time.Minute, true},
		{70 * time.Second, time.Minute, true},
		{time.Minute, 61 * time.Second, true}, // clocks
		{time.Minute, 70 * time.Second, false},
		{time.Hour, time.Minute, false},
	} {
		if got := agesMatch(c.age, c.since); got != c.want {
			t.Errorf("process %v, init %v: %v", c.age, c.since, got)
		}
	}
}
