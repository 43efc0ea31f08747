package supervisor

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// An evicted service is killed at once and must not start again, whatever its state. The CMD keeps running.
func TestEvictedFromEveryState(t *testing.T) {
	for _, state := range States() {
		r := newRig(t)
		r.reachState(state)
		alive := r.service().pid != 0 || r.service().leftover
		got := r.step(Evict{Names: []string{"s", "unknown"}, Cause: CauseLease, Reason: "the lock is lost"})
		if s := r.machine.services["s"]; (s != nil) != alive && state != Starting {
			t.Errorf("%s: known %v, alive %v", state, s != nil, alive)
			continue
		}
		if !alive {
			continue
		}
		if len(got) == 0 || got[len(got)-1] != "signaltree" {
			t.Errorf("%s: actions %v, want it killed", state, got)
		}
		s := r.service()
		if s.want != WantDown || s.restartAfterRun {
			t.Errorf("%s: it is still wanted", state)
		}
		run := s.liveRun()
		if s.pid != 0 {
			asked := s.requestedCause
			r.step(Exited{Name: "s", PID: s.pid, Code: -1, Signal: sigKill, Leftover: true})
			if state == Up && (asked != CauseLease || s.lastExit.Cause != CauseLease) {
				t.Errorf("its exit is caused by %s", s.lastExit.Cause)
			}
		}
		r.step(RunEnded{"s", run})
		if s := r.machine.services["s"]; s != nil && s.state != Finishing {
			t.Errorf("%s: it is %s after its end", state, s.state)
		}
	}
	r := newRig(t)
	r.step(Add{Name: "cmd", Policy: &Policy{IsCMD: true}, Want: WantUp})
	r.step(Spawned{"cmd", 7})
	r.step(Evict{Names: []string{"cmd"}})
	if s := r.machine.services["cmd"]; s == nil || s.state != Up {
		t.Error("the CMD was evicted")
	}
}

// A lost lock must kill services at once, also during a shutdown. The shutdown may take minutes, and another container begins
// to serve in that time.
func TestALostLockKillsAtOnceWhileTheContainerStops(t *testing.T) {
	r := newRig(t)
	r.machine.ShutdownBudget = 2 * time.Minute
	r.reachUp()
	r.step(Shutdown{})
	r.wantState(Stopping)
	if got := r.step(Evict{Names: []string{"s"}, Cause: CauseLease, Reason: "the lock is lost"}); !slices.Equal(got, []string{"signaltree"}) {
		t.Errorf("actions %v, want it killed", got)
	}
	r.step(Exited{Name: "s", PID: r.pid, Code: -1, Signal: sigKill})
	if got := r.service(); got != nil {
		t.Errorf("it is %s after its end", got.state)
	}
	if got := r.step(NoChildrenLeft{}); !slices.Contains(got, "end") {
		t.Errorf("actions %v, want the end of the container", got)
	}
}

// A start that CheckStart refuses must fail temporarily, so that it is tried again.
func TestWhatIsNotAdmittedIsNotStarted(t *testing.T) {
	refused := errors.New("the lease is lost")
	l := NewLoop(Config{CheckStart: func(string, Kind) error { return refused }})
	l.units["a"] = &unit{Unit: &Unit{Name: "a", Kind: KindGateway}}
	got, ok := l.spawn(Spawn{Name: "a", Run: 1}).(SpawnFailed)
	if !ok || got.Error != refused.Error() || got.Permanent {
		t.Errorf("got %+v", got)
	}
}
