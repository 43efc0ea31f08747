package supervisor

import (
	"slices"
	"testing"
	"testing/synctest"
)

// commanding returns a machine whose service "s" is up and has a stop command.
func commanding(t *testing.T) *rig {
	r := newRig(t)
	p := testPolicy
	p.StopCommand = []string{"ask"}
	r.do(Add{Name: "s", Policy: new(p), Want: WantUp})
	r.spawned()
	return r
}

// stopSignals returns the stop signals, and the run number of the stop command, since the last call.
func (r *rig) stopSignals() (signals []int, command uint64) {
	for _, a := range r.actions {
		switch a := a.(type) {
		case Signal:
			signals = append(signals, a.Signal)
		case SpawnStop:
			command = a.Run
		}
	}
	r.actions = nil
	return signals, command
}

func TestTheStopSignalFollowsTheStopCommand(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	r.want(Stopping)
	signals, command := r.stopSignals()
	if command == 0 || !slices.Equal(signals, []int{sigCont}) {
		t.Fatalf("command %d, signals %v", command, signals)
	}
	r.do(StopCommandEnded{Name: "s", Run: command, Fault: "has failed: exited with code 3"})
	if signals, _ := r.stopSignals(); !slices.Equal(signals, []int{testPolicy.StopSignal}) {
		t.Errorf("after the command: signals %v", signals)
	}
	r.exit(0)
	r.want(Down)
	if signals, _ := r.stopSignals(); len(signals) != 0 {
		t.Errorf("after the end: signals %v", signals)
	}
}

func (r *rig) killed() (runs []uint64) {
	for _, a := range r.actions {
		if a, ok := a.(Signal); ok && a.Signal == sigKill {
			runs = append(runs, a.Run)
		}
	}
	r.actions = nil
	return runs
}

func TestAServiceIsDownOnlyWhenItsStopCommandHasEnded(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	_, command := r.stopSignals()
	r.exit(0)
	r.want(Stopping)
	r.do(Start{"s"})
	r.want(Stopping)
	r.do(Stop{"s"})
	if signals, again := r.stopSignals(); len(signals) != 0 || again != 0 {
		t.Errorf("after the end of the main process: signals %v, another command %d", signals, again)
	}
	r.do(StopCommandEnded{Name: "s", Run: command + 1})
	r.want(Stopping)
	r.do(StopCommandEnded{Name: "s", Run: command})
	r.want(Down)
	if signals, _ := r.stopSignals(); len(signals) != 0 {
		t.Errorf("a service that is down was sent %v", signals)
	}
}

func TestAStopCommandThatNeverEndsIsKilledWhenTheGraceIsOver(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	_, command := r.stopSignals()
	r.exit(0)
	r.wait(testPolicy.Grace - 1)
	if runs := r.killed(); len(runs) != 0 {
		t.Fatalf("runs %v were killed before the grace was over", runs)
	}
	r.wait(1)
	r.want(Killing)
	r.wait(firstKillInterval)
	if runs := r.killed(); !slices.Equal(runs, []uint64{command, command}) {
		t.Errorf("runs %v were killed, want %d twice", runs, command)
	}
	r.do(StopCommandEnded{Name: "s", Run: command, Leftover: true})
	r.want(Killing)
	r.do(RunEnded{"s", command})
	r.want(Down)
}

func TestAStopCommandIsKilledTogetherWithItsService(t *testing.T) {
	r := commanding(t)
	r.do(Stop{"s"})
	_, command := r.stopSignals()
	main := r.s().number
	r.wait(testPolicy.Grace)
	if runs := r.killed(); !slices.Equal(runs, []uint64{main, command}) {
		t.Errorf("runs %v were killed, want %d and %d", runs, main, command)
	}
	r.exit(-1)
	r.want(Killing)
	r.do(StopCommandEnded{Name: "s", Run: command})
	r.want(Down)
}

func TestWhatAStopCommandLeavesIsKilledBeforeTheServiceIsDown(t *testing.T) {
	for name, after := range map[string]bool{"the main process still runs": false, "the main process has ended": true} {
		t.Run(name, func(t *testing.T) {
			r := commanding(t)
			r.do(Stop{"s"})
			_, command := r.stopSignals()
			if after {
				r.exit(0)
			}
			r.do(StopCommandEnded{Name: "s", Run: command, Leftover: true})
			if !after {
				r.exit(0)
			}
			r.want(Killing)
			if runs := r.killed(); !slices.Contains(runs, command) {
				t.Errorf("runs %v were killed, not %d", runs, command)
			}
			r.do(Start{"s"})
			r.want(Killing)
			r.do(RunEnded{"s", command})
			r.want(Starting)
		})
	}
}

func TestLoopTellsTheEndOfAStopCommandFromTheEndOfItsService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.directory(t, func(u *Unit) {
			u.Policy = testPolicy
			u.Policy.StopCommand = []string{"ask"}
		})
		main, _ := b.last()
		if err := b.Do(t.Context(), Stop{"s"}); err != nil {
			t.Fatal(err)
		}
		command, spec := b.last()
		if command == main || !slices.Equal(spec.Argv, []string{"ask"}) {
			t.Fatalf("run %d: %+v", command, spec)
		}
		b.procs.end(main, 0, 0)
		synctest.Wait()
		b.want(t, Stopping)
		b.endNewestProcess(0)
		b.want(t, Down)
		b.shutdown(t)
	})
}

func TestASuccessCodeIsAsGoodAsZero(t *testing.T) {
	for code, want := range map[int]State{0: Down, 3: Down, 4: Backoff} {
		r := newRig(t)
		p := testPolicy
		p.RestartPolicy, p.SuccessCodes, p.IsConfiguredTask = RestartOnFailure, []int{3}, true
		r.do(Add{Name: "s", Policy: new(p), Want: WantUp})
		r.spawned()
		r.exit(code)
		if s := r.s(); s.state != want || s.succeeded != (want == Down) {
			t.Errorf("code %d: %s, done %t, cause %s", code, s.state, s.succeeded, s.lastExit.Cause)
		}
	}
}
