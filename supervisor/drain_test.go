package supervisor

import (
	"slices"
	"testing"
	"time"
)

// draining is the policy of a logger.
var draining = func() Policy {
	p := policy
	p.Drains = true
	return p
}()

// withLogger is a rig whose service "s" has a logger.
func withLogger(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.do(Add{Name: "log", Policy: draining, Want: WantUp})
	r.do(Spawned{"log", 50})
	r.up()
	return r
}

// signalled are the services that the last step's actions signal, or release with a "-" before.
func signalled(acts []Action) (names []string) {
	for _, a := range acts {
		switch a := a.(type) {
		case Signal:
			names = append(names, a.Name)
		case Release:
			names = append(names, "-"+a.Name)
		}
	}
	return names
}

func (r *rig) acted(e Event) []string {
	r.acts = nil
	r.do(e)
	return signalled(r.acts)
}

func TestALoggerOutlivesItsServiceAtTheEndOfTheContainer(t *testing.T) {
	r := withLogger(t)
	if got := r.acted(Shutdown{Reason: "asked"}); !slices.Equal(got, []string{"s"}) {
		t.Fatalf("told to end: %v", got)
	}
	r.now = r.now.Add(5 * time.Second)
	if got := r.acted(Tick{}); len(got) != 0 {
		t.Errorf("while the service still writes: %v", got)
	}
	if got := r.acted(Exited{Name: "s", PID: r.s().pid}); !slices.Equal(got, []string{"-s"}) {
		t.Errorf("when the service has ended: %v", got)
	}
	if got := r.acted(Exited{Name: "log", PID: 50}); !slices.Equal(got, []string{"-log"}) {
		t.Errorf("when the logger has ended: %v", got)
	}
	if x := r.m.services["log"].last; x.Cause != CauseShutdown {
		t.Errorf("the logger has ended because of %s", x.Cause)
	}
	if got := r.do(Swept{}); !slices.Contains(got, "end") {
		t.Errorf("the container goes on: %v", got)
	}
}

func TestALoggerThatDoesNotEndByItselfIsToldTo(t *testing.T) {
	r := withLogger(t)
	r.do(Shutdown{Reason: "asked"})
	r.do(Exited{Name: "s", PID: r.s().pid})
	r.now = r.now.Add(drainTime)
	if got := r.acted(Tick{}); !slices.Equal(got, []string{"log"}) {
		t.Errorf("after its time: %v", got)
	}
	r.now = r.now.Add(8 * time.Second)
	if got := r.acted(Tick{}); !slices.Equal(got, []string{"log"}) && r.m.phase != finished {
		t.Errorf("at the end of the budget: %v", got)
	}
}

func TestTheLastWordsOfAServiceThatHadToBeKilledAreReadToo(t *testing.T) {
	r := withLogger(t)
	r.do(Shutdown{Reason: "asked"})
	begin := r.now
	killed := false
	for !killed {
		at, ok := r.m.Deadline()
		if !ok || at.Sub(begin) >= 8*time.Second {
			t.Fatal("the service is never killed")
		}
		r.now = at
		killed = slices.Contains(r.acted(Tick{}), "s")
	}
	r.do(Exited{Name: "s", PID: r.s().pid, Code: -1, Signal: sigKill})
	if s := r.m.services["log"]; s.pid == 0 || s.state == Killing {
		t.Errorf("the logger is %s as soon as the service is killed", s.state)
	}
	for r.m.phase != finished {
		at, _ := r.m.Deadline()
		r.now = at
		r.do(Tick{})
	}
	if took := r.now.Sub(begin); took > 8*time.Second {
		t.Errorf("it takes %s of a budget of 8s", took)
	}
}

func TestASecondShutdownDoesNotSpareTheLogger(t *testing.T) {
	r := withLogger(t)
	r.do(Shutdown{Reason: "asked"})
	if got := r.acted(Shutdown{Reason: "again"}); !slices.Contains(got, "log") || !slices.Contains(got, "s") {
		t.Errorf("killed: %v", got)
	}
}
