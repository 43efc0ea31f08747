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
		{"hinit\x00init\x00sleep\x001\x00", startupTime - 1, true},
		{"/init\x00", startupTime, false},
		{"hinit\x00status\x00", time.Second, false},
		{"hinit\x00", time.Second, false},
		{"sleep\x001000\x00", time.Second, false},
		{"", 0, false},
	} {
		if got := isStartingInit([]byte(c.cmdline), c.age); got != c.young {
			t.Errorf("%q after %s: %v", c.cmdline, c.age, got)
		}
	}
}
