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
	r.do(Add{Name: "s", Policy: new(sheddablePolicy)})
	switch word {
	case "shed":
		return r.do(Hold{Name: "s", Reason: "shed, 96 % are used"})
	case "full":
		r.do(HoldStarts{"92 % are used"})
		return r.do(Start{"s"})
	}
	r.do(HoldStarts{"92 % are used"})
	r.do(NeedMet{"boot"})
	r.want(Waiting)
	return r.do(HoldStarts{})
}

func TestAShedServiceStaysWantedAndComesBack(t *testing.T) {
	for _, way := range []string{"room", "operator"} {
		r := newRig(t)
		r.do(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
		r.spawned()
		r.do(HoldStarts{"waits for memory"})
		r.do(Hold{Name: "s", Reason: "shed"})
		r.want(Stopping)
		r.do(Exited{Name: "s", PID: r.s().pid, Signal: sigTerm, Code: -1})
		r.want(Waiting)
		if s := r.s(); s.want != WantUp || s.lastExit.Cause != CauseShed || s.reason != "shed" || !slices.Equal(s.unmet, []string{NeedMemory}) || s.failures != 0 || s.restarts != 0 {
			t.Fatalf("want %s, cause %s, reason %q, lacks %q, %d failures", s.want, s.lastExit.Cause, s.reason, s.unmet, s.failures)
		}
		r.do(HoldStarts{}) // the service that was ended for memory must keep waiting
		r.want(Waiting)
		if way == "room" {
			r.do(Hold{Name: "s"})
		} else {
			r.do(Start{"s"})
		}
		r.want(Starting)
		r.spawned()
	}
}

func TestWhileMemoryIsShortNothingStartsThatCanWait(t *testing.T) {
	r := newRig(t)
	r.do(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
	r.spawned()
	r.do(HoldStarts{"waits for memory: 92 %"})
	r.want(Up)
	r.exit(1)
	r.wait(time.Second)
	r.want(Waiting)
	if r.s().reason != "waits for memory: 92 %" {
		t.Errorf("the reason is %q", r.s().reason)
	}
	r.do(Add{Name: "critical", Policy: new(testPolicy), Want: WantUp})
	r.do(Hold{Name: "critical", Reason: "shed"})
	if c := r.m.services["critical"]; c.state != Starting || r.m.shortage.held["critical"] != "" {
		t.Errorf("the critical one is %s, held %q", c.state, r.m.shortage.held["critical"])
	}
	r.do(Stop{"s"})
	r.want(Down)
	r.do(HoldStarts{})
	r.want(Down)
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
	r.m.MaxStarting = 1
	turns := sheddablePolicy
	turns.LimitedStarts, turns.ReportsReadiness = true, true
	r.do(Add{Name: "first", Policy: new(turns), Want: WantUp})
	r.do(Add{Name: "s", Policy: new(turns), Want: WantUp})
	r.want(Waiting)
	r.do(HoldStarts{"waits for memory"})
	r.do(Spawned{"first", 50})
	r.do(Ready{Name: "first", Run: r.m.services["first"].number, Ready: true})
	r.want(Waiting)
	if r.s().reason != "waits for memory" {
		t.Errorf("the reason is %q", r.s().reason)
	}
	r.do(HoldStarts{})
	r.want(Starting)
}

// A profile above its quota is stopped, even a critical one. Free memory must not start it again.
func TestAProfileAboveItsQuotaIsStopped(t *testing.T) {
	const reason = "disk: its files have 5GiB"
	for _, way := range []string{"room", "operator"} {
		r := newRig(t)
		r.do(Add{Name: "s", Policy: new(testPolicy), Want: WantUp})
		r.spawned()
		r.do(Hold{Name: "s", Reason: reason, Disk: true})
		r.want(Stopping)
		r.do(Exited{Name: "s", PID: r.s().pid, Signal: sigTerm, Code: -1})
		r.want(Waiting)
		if s := r.s(); s.want != WantUp || s.lastExit.Cause != CauseQuota || s.reason != reason || !slices.Equal(s.unmet, []string{NeedDisk}) {
			t.Fatalf("want %s, cause %s, reason %q, lacks %q", s.want, s.lastExit.Cause, s.reason, s.unmet)
		}
		r.do(HoldStarts{"92 % are used"})
		r.do(HoldStarts{})
		r.do(Hold{Name: "s"})
		r.do(Hold{Name: "s", Reason: "shed"})
		r.want(Waiting)
		if r.m.shortage.held["s"] != reason {
			t.Errorf("memory has made it %q", r.m.shortage.held["s"])
		}
		if way == "room" {
			r.do(Hold{Name: "s", Disk: true})
		} else {
			r.do(Start{"s"})
		}
		r.want(Starting)
		r.spawned()
	}
}

// A service that waits for memory and for disk space must start only when it has both.
func TestAServiceThatWaitsForMemoryIsNotStartedBecauseItsDiskHasRoom(t *testing.T) {
	r := newRig(t)
	r.do(Add{Name: "s", Policy: new(sheddablePolicy), Want: WantUp})
	r.spawned()
	r.do(Hold{Name: "s", Reason: "shed"})
	r.do(Exited{Name: "s", PID: r.s().pid, Signal: sigTerm, Code: -1})
	r.do(Hold{Name: "s", Disk: true})
	r.want(Waiting)
}

// A service waits for another service. A hold must replace that reason at once, and the end of the hold must restore it.
func TestAServiceThatWaitsShowsAHold(t *testing.T) {
	c := newCrew(t)
	c.add("web", RestartAndNeeds{Needs: needs("db:ready")})
	c.do(Hold{Name: "web", Reason: NeedDisk + ": its profile uses too much", Disk: true})
	c.why("web", NeedDisk)
	c.do(Hold{Name: "web", Disk: true})
	c.why("web", "waits for db")
	c.is("web", Waiting)
}
