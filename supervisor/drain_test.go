package supervisor

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// drainingPolicy is the policy of a logger, which drains its input before it ends.
var drainingPolicy = func() Policy {
	p := testPolicy
	p.DrainsInput = true
	return p
}()

func newRigWithLogger(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.step(Add{Name: "log", Policy: new(drainingPolicy), Want: WantUp})
	r.step(Spawned{"log", 50})
	r.reachUp()
	return r
}

// signalledServices returns the services that the actions of the last step signal. A "-" before the name means that they close
// its input.
func signalledServices(actions []Action) (names []string) {
	for _, a := range actions {
		switch a := a.(type) {
		case Signal:
			names = append(names, a.Name)
		case CloseOutput:
			names = append(names, "-"+a.Name)
		}
	}
	return names
}

func (r *rig) actionsAfter(e Event) []string {
	r.actions = nil
	r.step(e)
	return signalledServices(r.actions)
}

func TestALoggerOutlivesItsServiceAtTheEndOfTheContainer(t *testing.T) {
	r := newRigWithLogger(t)
	if got := r.actionsAfter(Shutdown{Reason: "asked"}); !slices.Equal(got, []string{"s"}) {
		t.Fatalf("told to end: %v", got)
	}
	r.now = r.now.Add(5 * time.Second)
	if got := r.actionsAfter(Tick{}); len(got) != 0 {
		t.Errorf("while the service still writes: %v", got)
	}
	if got := r.actionsAfter(Exited{Name: "s", PID: r.service().pid}); !slices.Equal(got, []string{"-s"}) {
		t.Errorf("when the service has ended: %v", got)
	}
	if got := r.actionsAfter(Exited{Name: "log", PID: 50}); !slices.Equal(got, []string{"-log"}) {
		t.Errorf("when the logger has ended: %v", got)
	}
	if x := r.machine.services["log"].lastExit; x.Cause != CauseShutdown {
		t.Errorf("the logger has ended because of %s", x.Cause)
	}
	if got := r.step(NoChildrenLeft{}); !slices.Contains(got, "end") {
		t.Errorf("the container keeps running: %v", got)
	}
}

func TestALoggerThatDoesNotExitIsSignalled(t *testing.T) {
	r := newRigWithLogger(t)
	r.step(Shutdown{Reason: "asked"})
	r.step(Exited{Name: "s", PID: r.service().pid})
	r.now = r.now.Add(maxDrainTime)
	if got := r.actionsAfter(Tick{}); !slices.Equal(got, []string{"log"}) {
		t.Errorf("after its time: %v", got)
	}
	r.now = r.now.Add(8 * time.Second)
	if got := r.actionsAfter(Tick{}); !slices.Equal(got, []string{"log"}) && r.machine.phase != phaseFinished {
		t.Errorf("at the end of the budget: %v", got)
	}
}

func TestTheLastWordsOfAServiceThatHadToBeKilledAreReadToo(t *testing.T) {
	r := newRigWithLogger(t)
	r.step(Shutdown{Reason: "asked"})
	begin := r.now
	killed := false
	for !killed {
		at, ok := r.machine.Deadline()
		if !ok || at.Sub(begin) >= 8*time.Second {
			t.Fatal("the service is never killed")
		}
		r.now = at
		killed = slices.Contains(r.actionsAfter(Tick{}), "s")
	}
	r.step(Exited{Name: "s", PID: r.service().pid, Code: -1, Signal: sigKill})
	if s := r.machine.services["log"]; s.pid == 0 || s.state == Killing {
		t.Errorf("the logger is %s as soon as the service is killed", s.state)
	}
	for r.machine.phase != phaseFinished {
		at, _ := r.machine.Deadline()
		r.now = at
		r.step(Tick{})
	}
	if took := r.now.Sub(begin); took > 8*time.Second {
		t.Errorf("it takes %s of a budget of 8s", took)
	}
}

func TestASecondShutdownDoesNotSpareTheLogger(t *testing.T) {
	r := newRigWithLogger(t)
	r.step(Shutdown{Reason: "asked"})
	if got := r.actionsAfter(Shutdown{Reason: "again"}); !slices.Contains(got, "log") || !slices.Contains(got, "s") {
		t.Errorf("killed: %v", got)
	}
}

// TestALeaseIsGivenAwayOnlyWhenNothingElseIsAlive checks that the lease program gets its drain signal only after all other
// services have ended.
func TestALeaseIsGivenAwayOnlyWhenNothingElseIsAlive(t *testing.T) {
	r := newRig(t)
	last := drainingPolicy
	last.DrainSignal = 30
	r.step(Add{Name: "lease", Policy: new(last), Want: WantUp})
	r.step(Spawned{"lease", 50})
	r.reachUp()
	if got := r.actionsAfter(Shutdown{Reason: "asked"}); !slices.Equal(got, []string{"s"}) {
		t.Fatalf("told to end: %v", got)
	}
	r.actions = nil
	r.step(Exited{Name: "s", PID: r.service().pid})
	var sent []Signal
	for _, a := range r.actions {
		if s, is := a.(Signal); is {
			sent = append(sent, s)
		}
	}
	if want := (Signal{"lease", r.machine.services["lease"].number, 30, ScopeMain, false}); len(sent) != 1 || sent[0] != want {
		t.Errorf("sent %+v", sent)
	}
	if got := r.actionsAfter(Tick{}); len(got) != 0 {
		t.Errorf("and again: %v", got)
	}
	r.now = r.now.Add(maxDrainTime)
	if got := r.actionsAfter(Tick{}); !slices.Equal(got, []string{"lease"}) {
		t.Errorf("when it takes too long: %v", got)
	}
}

// TestNobodyElseSendsTheLastSignal checks that clients can't send the drain signal. An agent may signal services, but
// must not make the lease go to another pod while gateways run.
func TestNobodyElseSendsTheLastSignal(t *testing.T) {
	l := NewLoop(Config{})
	l.units["lease"] = &unit{Unit: &Unit{Name: "lease", Policy: Policy{DrainSignal: 30}}}
	l.units["s"] = &unit{Unit: &Unit{Name: "s"}}
	for event, want := range map[Event]error{
		SignalMain{Name: "lease", Signal: 30}: ErrReservedSignal, SignalMain{Name: "lease", Signal: 15}: nil, SignalMain{Name: "s", Signal: 30}: nil,
		SignalMain{Name: "s"}: nil, SignalMain{Name: "lease"}: nil,
	} {
		if err := l.checkRequest(request{event: event}); !errors.Is(err, want) {
			t.Errorf("%+v: %v", event, err)
		}
	}
}
