package supervisor

import (
	"slices"
	"testing"
	"time"
)

func TestExitsAndRestartsAreCountedByCause(t *testing.T) {
	r := newRig(t)
	r.up()
	want := func(exits, restarted causeCounts) {
		t.Helper()
		if !slices.Equal(r.s().exits, exits) || !slices.Equal(r.s().restartCauses, restarted) {
			t.Errorf("exits %v, restarts %v; want %v, %v", r.s().exits, r.s().restartCauses, exits, restarted)
		}
	}
	again := func() {
		t.Helper()
		r.wait(time.Minute)
		r.spawned()
	}
	r.exit(1)
	before := r.s().exits
	again()
	r.exit(0)
	again()
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}})
	r.exit(1)
	r.do(CorrectCause{Name: "s", Run: r.s().number, Cause: CauseConfig})
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}})
	again()
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}})
	r.do(Stop{Name: "s"})
	r.do(Exited{Name: "s", PID: r.s().pid, Code: 0})
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}, {CauseOperator, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}})
	if len(before) != 1 {
		t.Errorf("what a snapshot has became %v", before)
	}
}

// A crash must park the service if its last lines match park_on_output. The exit code does not tell: the dashboard refuses to
// bind with exit code 1.
func TestARefusalParksWithItsReason(t *testing.T) {
	r := newRig(t)
	refusing := testPolicy
	refusing.ParkOnOutput = "Refusing to bind"
	r.do(Add{Name: "s", Policy: new(refusing), Want: WantUp})
	r.spawned()
	r.exit(1)
	r.do(LastLines{"s", r.s().number, []string{"Traceback", "it crashed"}})
	if r.s().state == Parked {
		t.Error("an ordinary crash is parked")
	}
	r.wait(time.Minute)
	r.spawned()
	r.exit(1)
	const why = "Refusing to bind dashboard to 0.0.0.0"
	r.do(LastLines{"s", r.s().number, []string{"starting", "  " + why, "set a password"}})
	if r.s().state != Parked || r.s().reason != why {
		t.Errorf("%s, %q", r.s().state, r.s().reason)
	}
	r.do(Start{Name: "s"})
	if r.s().state != Starting {
		t.Errorf("an order leaves it %s", r.s().state)
	}
}
