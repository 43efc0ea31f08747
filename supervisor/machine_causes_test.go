package supervisor

import (
	"slices"
	"testing"
	"time"
)

func TestExitsAndRestartsAreCountedByCause(t *testing.T) {
	r := newRig(t)
	r.up()
	want := func(exits, restarted causes) {
		t.Helper()
		if !slices.Equal(r.s().exits, exits) || !slices.Equal(r.s().restarted, restarted) {
			t.Errorf("exits %v, restarts %v; want %v, %v", r.s().exits, r.s().restarted, exits, restarted)
		}
	}
	again := func() {
		t.Helper()
		r.wait(time.Minute)
		r.spawned()
	}
	r.exit(1)
	before := r.s().exits // a snapshot shares it
	again()
	r.exit(0)
	again()
	want(causes{{CauseCrash, 1}, {CauseClean, 1}}, causes{{CauseCrash, 1}, {CauseClean, 1}})
	r.exit(1)
	r.do(Explained{Name: "s", Run: r.s().id, Cause: CauseConfig})
	want(causes{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causes{{CauseCrash, 1}, {CauseClean, 1}})
	again()
	want(causes{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}}, causes{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}})
	r.do(Stop{Name: "s"})
	r.do(Exited{Name: "s", PID: r.s().pid, Code: 0})
	want(causes{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}, {CauseOperator, 1}}, causes{{CauseCrash, 1}, {CauseClean, 1}, {CauseConfig, 1}})
	if len(before) != 1 {
		t.Errorf("what a snapshot has became %v", before)
	}
}
