package supervisor

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// A crash and the next start must make as many allocations with 500 services as with 10.
func TestAStartCostsTheSameBesideMany(t *testing.T) {
	beside := func(many int) float64 {
		r := newRig(t)
		pids := map[string]int{}
		for i := range many {
			name := fmt.Sprintf("s%03d", i)
			r.pid++
			pids[name] = r.pid
			r.machine.Step(r.now, Add{Name: name, Policy: &Policy{ResetAfter: time.Minute, Grace: time.Second}, Want: WantUp})
			r.machine.Step(r.now, Spawned{name, r.pid})
		}
		name := fmt.Sprintf("s%03d", many/2)
		started := 0
		allocations := testing.AllocsPerRun(100, func() {
			r.now = r.now.Add(2 * time.Minute)
			for _, a := range r.machine.Step(r.now, Exited{Name: name, PID: pids[name], Code: 1}) {
				if _, is := a.(Spawn); is {
					started++
				}
			}
			r.pid++
			pids[name] = r.pid
			r.machine.Step(r.now, Spawned{name, r.pid})
		})
		if started != 101 {
			t.Fatalf("it was started %d times", started)
		}
		return allocations
	}
	few, many := beside(10), beside(500)
	t.Logf("%v beside 10, %v beside 500", few, many)
	if many > few {
		t.Errorf("a start allocates %v times beside 500 services, and %v times beside 10", many, few)
	}
}

// A step must not save or examine all services. Otherwise the boot of many services never ends. The test counts the services
// that each step saves for undo.
func TestABootOf8000ServicesThatNeedEachOtherNeverEnded(t *testing.T) {
	r := newRig(t)
	const many = 400
	saved := 0
	step := func(e Event) {
		for _, a := range append([]Action{}, r.machine.Step(r.now, e)...) {
			saved = max(saved, len(r.machine.stepResult.saved))
			if spawn, is := a.(Spawn); is {
				r.pid++
				r.machine.Step(r.now, Spawned{spawn.Name, r.pid})
				saved = max(saved, len(r.machine.stepResult.saved))
			}
		}
	}
	for i := range many {
		o := RestartAndNeeds{Needs: []Need{{"s0", UntilReady, false}, {fmt.Sprintf("s%d", max(i-1, 0)/7), UntilReady, false}}}
		if i == 0 {
			o = RestartAndNeeds{}
		}
		step(Add{Name: fmt.Sprintf("s%d", i), Policy: new(policyWith(o)), Want: WantUp})
	}
	for i := range many {
		step(StatusText{fmt.Sprintf("s%d", i), r.machine.services[fmt.Sprintf("s%d", i)].number, "x"})
	}
	if s := r.machine.services[fmt.Sprintf("s%d", many-1)]; s.state != Up || saved > 10 {
		t.Fatalf("the last service is %s, and a step saved %d services", s.state, saved)
	}
	step(Shutdown{Reason: "test"})
	saved = 0
	for i := many - 1; i > 0; i-- {
		step(Exited{Name: fmt.Sprintf("s%d", i), PID: r.machine.services[fmt.Sprintf("s%d", i)].pid})
	}
	if s := r.machine.services["s0"]; s.state != Stopping || saved > 10 {
		t.Fatalf("s0 is %s without its dependants, and a step saved %d services", s.state, saved)
	}
}

// A busy loop may handle its first event after the shutdown budget has passed. It must still kill all processes.
func TestALateEndLeftProcessesAlive(t *testing.T) {
	r := newRig(t)
	r.machine.Step(r.now, Add{Name: "db", Policy: new(testPolicy), Want: WantUp})
	r.machine.Step(r.now, Spawned{"db", 7})
	r.machine.Step(r.now, Shutdown{Reason: "test"})
	actions := r.machine.Step(r.now.Add(r.machine.ShutdownBudget+time.Second), Tick{})
	end := slices.IndexFunc(actions, func(a Action) bool { _, is := a.(EndLoop); return is })
	if kill := slices.Index(actions, Action(SignalDescendants{sigKill})); kill < 0 || end < kill {
		t.Errorf("at the end it did %+v", actions)
	}
}

// The machine must drop the copies of services after the step that needed them.
func TestPID1KeptEachDefinitionTwiceAndACopyOfEveryService(t *testing.T) {
	b := newBench(t)
	for i := range 100 {
		u := Unit{Name: fmt.Sprintf("s%03d", i), Kind: KindService, Needs: []string{"boot"}}
		if err := b.Register(context.Background(), u, WantUp); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []Event{NeedMet{"boot"}, HoldStarts{Reason: "the last step before PID 1 is at rest"}} {
		if err := b.Do(context.Background(), e); err != nil {
			t.Fatal(err)
		}
	}
	err := b.RunInLoop(context.Background(), func() {
		if n := cap(b.machine.stepResult.saved); n > 50 {
			t.Errorf("there is room for copies of %d services", n)
		}
		for name, s := range b.machine.services {
			if s.policy != &b.units[name].Policy {
				t.Fatalf("%s has two policies", name)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.shutdown(t)
}
