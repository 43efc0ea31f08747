package supervisor

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var sheddablePolicy = func() Policy {
	p := testPolicy
	p.Sheddable = true
	return p
}()

// memoryEvents returns the events for a word about memory in the transition table.
func (r *rig) memoryEvents(word string) []string {
	r.step(Add{Name: "s", Policy: new(sheddablePolicy)})
	switch word {
	case "shed":
		return r.step(Hold{Name: "s", Reason: "shed, 96 % are used"})
	case "full":
		r.step(HoldStarts{"92 % are used"})
		return r.step(Start{"s"})
	}
	r.step(HoldStarts{"92 % are used"})
	r.step(NeedMet{"boot"})
	r.wantState(Waiting)
	return r.step(HoldStarts{})
}

func TestAShedServiceStaysWantedAndComesBack(t *testing.T) {
	for _, way := range []string{"room", "operator"} {
		r := newRig(t)
		r.step(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
		r.spawned()
		r.step(HoldStarts{"waits for memory"})
		r.step(Hold{Name: "s", Reason: "shed"})
		r.wantState(Stopping)
		r.step(Exited{Name: "s", PID: r.service().pid, Signal: sigTerm, Code: -1})
		r.wantState(Waiting)
		if s := r.service(); s.want != WantUp || s.lastExit.Cause != CauseShed || s.reason != "shed" || !slices.Equal(s.unmetNeeds, []string{NeedMemory}) || s.failures != 0 || s.restarts != 0 {
			t.Fatalf("want %s, cause %s, reason %q, lacks %q, %d failures", s.want, s.lastExit.Cause, s.reason, s.unmetNeeds, s.failures)
		}
		r.step(HoldStarts{}) // the service that was ended for memory must keep waiting
		r.wantState(Waiting)
		if way == "room" {
			r.step(Hold{Name: "s"})
		} else {
			r.step(Start{"s"})
		}
		r.wantState(Starting)
		r.spawned()
	}
}

func TestWhileMemoryIsShortNothingStartsThatCanWait(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
	r.spawned()
	r.step(HoldStarts{"waits for memory: 92 %"})
	r.wantState(Up)
	r.exit(1)
	r.advance(time.Second)
	r.wantState(Waiting)
	if r.service().reason != "waits for memory: 92 %" {
		t.Errorf("the reason is %q", r.service().reason)
	}
	r.step(Add{Name: "critical", Policy: new(testPolicy), Want: WantUp})
	r.step(Hold{Name: "critical", Reason: "shed"})
	if c := r.machine.services["critical"]; c.state != Starting || r.machine.shortage.held["critical"] != "" {
		t.Errorf("the critical one is %s, held %q", c.state, r.machine.shortage.held["critical"])
	}
	r.step(Stop{"s"})
	r.wantState(Down)
	r.step(HoldStarts{})
	r.wantState(Down)
	said := 0
	for _, a := range r.actions {
		if n, is := a.(AppendRecord); is && n.Record.Service == "" && strings.Contains(n.Record.Reason, "memory") {
			said++
		}
	}
	if said != 2 {
		t.Errorf("the history says %d times that memory is short or not", said)
	}
}

// A queued service whose turn comes while memory is short must wait for memory, and then join the queue again.
func TestAServiceInLineWaitsForMemoryWhenItsTurnComes(t *testing.T) {
	r := newRig(t)
	r.machine.MaxStarting = 1
	turns := sheddablePolicy
	turns.LimitedStarts, turns.ReportsReadiness = true, true
	r.step(Add{Name: "first", Policy: new(turns), Want: WantUp})
	r.step(Add{Name: "s", Policy: new(turns), Want: WantUp})
	r.wantState(Waiting)
	r.step(HoldStarts{"waits for memory"})
	r.step(Spawned{"first", 50})
	r.step(Ready{Name: "first", Run: r.machine.services["first"].number, Ready: true})
	r.wantState(Waiting)
	if r.service().reason != "waits for memory" {
		t.Errorf("the reason is %q", r.service().reason)
	}
	r.step(HoldStarts{})
	r.wantState(Starting)
}

// A profile above its quota is stopped, even a critical one. Free memory must not start it again.
func TestAProfileAboveItsQuotaIsStopped(t *testing.T) {
	const reason = "disk: its files have 5GiB"
	for _, way := range []string{"room", "operator"} {
		r := newRig(t)
		r.step(Add{Name: "s", Policy: new(testPolicy), Want: WantUp})
		r.spawned()
		r.step(Hold{Name: "s", Reason: reason, Disk: true})
		r.wantState(Stopping)
		r.step(Exited{Name: "s", PID: r.service().pid, Signal: sigTerm, Code: -1})
		r.wantState(Waiting)
		if s := r.service(); s.want != WantUp || s.lastExit.Cause != CauseQuota || s.reason != reason || !slices.Equal(s.unmetNeeds, []string{NeedDisk}) {
			t.Fatalf("want %s, cause %s, reason %q, lacks %q", s.want, s.lastExit.Cause, s.reason, s.unmetNeeds)
		}
		r.step(HoldStarts{"92 % are used"})
		r.step(HoldStarts{})
		r.step(Hold{Name: "s"})
		r.step(Hold{Name: "s", Reason: "shed"})
		r.wantState(Waiting)
		if r.machine.shortage.held["s"] != reason {
			t.Errorf("memory has made it %q", r.machine.shortage.held["s"])
		}
		if way == "room" {
			r.step(Hold{Name: "s", Disk: true})
		} else {
			r.step(Start{"s"})
		}
		r.wantState(Starting)
		r.spawned()
	}
}

// A service that waits for memory and for disk space must start only when it has both.
func TestAServiceThatWaitsForMemoryIsNotStartedBecauseItsDiskHasRoom(t *testing.T) {
	r := newRig(t)
	r.step(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
	r.spawned()
	r.step(Hold{Name: "s", Reason: "shed"})
	r.step(Exited{Name: "s", PID: r.service().pid, Signal: sigTerm, Code: -1})
	r.step(Hold{Name: "s", Disk: true})
	r.wantState(Waiting)
}

// A service waits for another service. A hold must replace that reason at once, and the end of the hold must restore it.
func TestAServiceThatWaitsShowsAHold(t *testing.T) {
	c := newMultiRig(t)
	c.add("web", RestartAndNeeds{Needs: parseNeeds("db:ready")})
	c.step(Hold{Name: "web", Reason: NeedDisk + ": its profile uses too much", Disk: true})
	c.wantReason("web", NeedDisk)
	c.step(Hold{Name: "web", Disk: true})
	c.wantReason("web", "waits for db")
	c.wantState("web", Waiting)
}
