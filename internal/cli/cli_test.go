package cli

import (
	"testing"
	"time"
)

func TestACommandWaitsOnlyForAnInitThatHasJustBeenStarted(t *testing.T) {
	for _, c := range []struct {
		cmdline string
		age     time.Duration
		young   bool
	}{
		{"/init\x00/opt/hermes/docker/main-wrapper.sh\x00", time.Second, true},
		{"/usr/bin/tini\x00--\x00", 0, true},
		{"hinit\x00init\x00sleep\x001\x00", youth - 1, true},
		{"/init\x00", youth, false},
		{"hinit\x00status\x00", time.Second, false},
		{"hinit\x00", time.Second, false},
		{"sleep\x001000\x00", time.Second, false},
		{"", 0, false},
	} {
		if got := isYoung([]byte(c.cmdline), c.age); got != c.young {
			t.Errorf("%q after %s: %v", c.cmdline, c.age, got)
		}
	}
}

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
		if got := isOf(c.age, c.since); got != c.want {
			t.Errorf("process %v, init %v: %v", c.age, c.since, got)
		}
	}
}
