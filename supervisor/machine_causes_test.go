package supervisor

import (
	"slices"
	"testing"
	"time"
)

func TestExitsAndRestartsAreCountedByCause(t *testing.T) {
	r := newRig(t)
	r.reachUp()
	want := func(exits, restarted causeCounts) {
		t.Helper()
		if !slices.Equal(r.service().exits, exits) || !slices.Equal(r.service().restartCauses, restarted) {
			t.Errorf("exits %v, restarts %v; want %v, %v", r.service().exits, r.service().restartCauses, exits, restarted)
		}
	}
	again := func() {
		t.Helper()
		r.advance(time.Minute)
		r.spawned()
	}
	r.exit(1)
	before := r.service().exits
	again()
	r.exit(0)
	again()
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}})
	r.exit(1)
	r.step(CorrectCause{Name: "s", Run: r.service().number, Cause: CauseConfig})
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}})
	again()
	want(causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causeCounts{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}})
	r.step(Stop{Name: "s"})
	r.step(Exited{Name: "s", PID: r.service().pid, Code: 0})
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
	r.step(Add{Name: "s", Policy: new(refusing), Want: WantUp})
	r.spawned()
	r.exit(1)
	r.step(LastLines{"s", r.service().number, []string{"Traceback", "it crashed"}})
	if r.service().state == Parked {
		t.Error("an ordinary crash is parked")
	}
	r.advance(time.Minute)
	r.spawned()
	r.exit(1)
	const why = "Refusing to bind dashboard to 0.0.0.0"
	r.step(LastLines{"s", r.service().number, []string{"starting", "  " + why, "set a password"}})
	if r.service().state != Parked || r.service().reason != why {
		t.Errorf("%s, %q", r.service().state, r.service().reason)
	}
	r.step(Start{Name: "s"})
	if r.service().state != Starting {
		t.Errorf("an order leaves it %s", r.service().state)
	}
}
