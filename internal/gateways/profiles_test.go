package gateways

import (
	"testing"
	"time"

	"hinit/supervisor"
)

func TestWhatIsTakenForTheEndBeforeARename(t *testing.T) {
	now := time.Now()
	exit := func(cause supervisor.Cause, ago time.Duration) *supervisor.Exit {
		return &supervisor.Exit{Run: 1, PID: 5, Code: 1, Cause: cause, At: now.Add(-ago)}
	}
	// after returns a service that has failed twice, the second time after the given uptime.
	after := func(uptime time.Duration, x *supervisor.Exit) *supervisor.Service {
		x.Uptime = uptime
		return &supervisor.Service{LastExit: x, Failures: 2}
	}
	for _, tt := range []struct {
		name string
		s    *supervisor.Service
		want bool
	}{
		{"ended by a signal of the agent", &supervisor.Service{LastExit: exit(supervisor.CauseCrash, time.Second), Failures: 1}, true},
		{"and started again at once", &supervisor.Service{LastExit: exit(supervisor.CauseCrash, time.Second), State: supervisor.Up}, true},
		{"and ended again at once, without its home", after(100*time.Millisecond, exit(supervisor.CauseCrash, time.Second)), true},
		{"it failed twice, the second time after a while", after(time.Minute, exit(supervisor.CauseCrash, time.Second)), false},
		{"killed after it took too long", &supervisor.Service{LastExit: exit(supervisor.CauseSignal, 0), Failures: 1}, true},
		{"it fails all the time", &supervisor.Service{LastExit: exit(supervisor.CauseCrash, time.Second), Failures: 4}, false},
		{"it failed long ago", &supervisor.Service{LastExit: exit(supervisor.CauseCrash, time.Minute)}, false},
		{"it had no memory", &supervisor.Service{LastExit: exit(supervisor.CauseOOM, 0), Failures: 1}, false},
		{"it could not be started", &supervisor.Service{LastExit: exit(supervisor.CauseSpawn, 0), Failures: 1}, false},
		{"it never ended", &supervisor.Service{}, false},
		{"nobody knows it", nil, false},
	} {
		if got := endedForRemoval(tt.s, now, now); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// The exit of a gateway whose home was removed must not count as a crash, even if hinit notices the removal late. On a busy
// machine several exits may come before.
func TestAnEndWithoutItsHomeIsNoCrashHoweverLateThatIsSeen(t *testing.T) {
	now := time.Now()
	s := &supervisor.Service{Failures: 5, LastExit: &supervisor.Exit{Run: 1, PID: 5, Code: 1, Cause: supervisor.CauseCrash, At: now.Add(-2 * time.Second), Uptime: 9 * time.Second}}
	for gone, want := range map[time.Duration]bool{3 * time.Second: true, 50 * time.Second: true, time.Second: false, 2 * time.Minute: false, -time.Minute: false} {
		if got := endedForRemoval(s, now.Add(-gone), now); got != want {
			t.Errorf("home gone for %s: %v", gone, got)
		}
	}
}
