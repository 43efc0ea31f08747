package supervisor

import (
	"slices"
	"testing"
)

// commanding returns a machine whose service "s" is up and has a stop command.
func commanding(t *testing.T) *rig {
	r := newRig(t)
	p := policy
	p.StopCommand = []string{"ask"}
	r.do(Add{Name: "s", Policy: p, Want: WantUp})
	r.spawned()
	return r
}

// asked returns the signals of the stop of a service that were sent since the last call.
func (r *rig) asked() (signals []int, command uint64) {
	for _, a := range r.acts {
		switch a := a.(type) {
		case Signal:
			signals = append(signals, a.Signal)
		case SpawnStop:
			command = a.Run
		}
	}
	r.acts = nil
	return signals, command
}

func TestTheStopSignalFollowsTheStopCommand(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	r.want(Stopping)
	signals, command := r.asked()
	if command == 0 || !slices.Equal(signals, []int{sigCont}) {
		t.Fatalf("command %d, signals %v", command, signals)
	}
	r.do(Commanded{"s", "has failed: exited with code 3"})
	if signals, _ := r.asked(); !slices.Equal(signals, []int{policy.StopSignal}) {
		t.Errorf("after the command: signals %v", signals)
	}
	r.exit(0)
	r.want(Down)
	if signals, _ := r.asked(); len(signals) != 0 {
		t.Errorf("after the end: signals %v", signals)
	}
}

func TestTheStopCommandOfAnEndedServiceChangesNothing(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	r.wait(policy.Grace)
	r.want(Killing)
	r.exit(-1)
	r.want(Down)
	r.asked()
	r.do(Commanded{"s", ""})
	if signals, _ := r.asked(); len(signals) != 0 {
		t.Errorf("a service that is down was sent %v", signals)
	}
}

func TestASuccessCodeIsAsGoodAsZero(t *testing.T) {
	for code, want := range map[int]State{0: Down, 3: Down, 4: Backoff} {
		r := newRig(t)
		p := policy
		p.After, p.Successes, p.OneShot = RestartOnFailure, []int{3}, true
		r.do(Add{Name: "s", Policy: p, Want: WantUp})
		r.spawned()
		r.exit(code)
		if s := r.s(); s.state != want || s.done != (want == Down) {
			t.Errorf("code %d: %s, done %t, cause %s", code, s.state, s.done, s.last.Cause)
		}
	}
}
