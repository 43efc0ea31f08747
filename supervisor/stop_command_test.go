package supervisor

import (
	"slices"
	"testing"
	"testing/synctest"
)

// newRigWithStopCommand returns a machine whose service "s" is up and has a stop command.
func newRigWithStopCommand(t *testing.T) *rig {
	r := newRig(t)
	p := testPolicy
	p.StopCommand = []string{"ask"}
	r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
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
	r := newRigWithStopCommand(t)
	r.step(Stop{"s"})
	r.wantState(Stopping)
	signals, command := r.stopSignals()
	if command == 0 || !slices.Equal(signals, []int{sigCont}) {
		t.Fatalf("command %d, signals %v", command, signals)
	}
	r.step(StopCommandEnded{Name: "s", Run: command, Fault: "has failed: exited with code 3"})
	if signals, _ := r.stopSignals(); !slices.Equal(signals, []int{testPolicy.StopSignal}) {
		t.Errorf("after the command: signals %v", signals)
	}
	r.exit(0)
	r.wantState(Down)
	if signals, _ := r.stopSignals(); len(signals) != 0 {
		t.Errorf("after the end: signals %v", signals)
	}
}

func (r *rig) killedRuns() (runs []uint64) {
	for _, a := range r.actions {
		if a, ok := a.(Signal); ok && a.Signal == sigKill {
			runs = append(runs, a.Run)
		}
	}
	r.actions = nil
	return runs
}

func TestAServiceIsDownOnlyWhenItsStopCommandHasEnded(t *testing.T) {
	r := newRigWithStopCommand(t)
	r.step(Stop{"s"})
	_, command := r.stopSignals()
	r.exit(0)
	r.wantState(Stopping)
	r.step(Start{"s"})
	r.wantState(Stopping)
	r.step(Stop{"s"})
	if signals, again := r.stopSignals(); len(signals) != 0 || again != 0 {
		t.Errorf("after the end of the main process: signals %v, another command %d", signals, again)
	}
	r.step(StopCommandEnded{Name: "s", Run: command + 1})
	r.wantState(Stopping)
	r.step(StopCommandEnded{Name: "s", Run: command})
	r.wantState(Down)
	if signals, _ := r.stopSignals(); len(signals) != 0 {
		t.Errorf("a service that is down was sent %v", signals)
	}
}

func TestAStopCommandThatNeverEndsIsKilledWhenTheGraceIsOver(t *testing.T) {
	r := newRigWithStopCommand(t)
	r.step(Stop{"s"})
	_, command := r.stopSignals()
	r.exit(0)
	r.advance(testPolicy.Grace - 1)
	if runs := r.killedRuns(); len(runs) != 0 {
		t.Fatalf("runs %v were killed before the grace was over", runs)
	}
	r.advance(1)
	r.wantState(Killing)
	r.advance(firstKillInterval)
	if runs := r.killedRuns(); !slices.Equal(runs, []uint64{command, command}) {
		t.Errorf("runs %v were killed, want %d twice", runs, command)
	}
	r.step(StopCommandEnded{Name: "s", Run: command, Leftover: true})
	r.wantState(Killing)
	r.step(RunEnded{"s", command})
	r.wantState(Down)
}

func TestAStopCommandIsKilledTogetherWithItsService(t *testing.T) {
	r := newRigWithStopCommand(t)
	r.step(Stop{"s"})
	_, command := r.stopSignals()
	main := r.service().number
	r.advance(testPolicy.Grace)
	if runs := r.killedRuns(); !slices.Equal(runs, []uint64{main, command}) {
		t.Errorf("runs %v were killed, want %d and %d", runs, main, command)
	}
	r.exit(-1)
	r.wantState(Killing)
	r.step(StopCommandEnded{Name: "s", Run: command})
	r.wantState(Down)
}

func TestWhatAStopCommandLeavesIsKilledBeforeTheServiceIsDown(t *testing.T) {
	for name, after := range map[string]bool{"the main process still runs": false, "the main process has ended": true} {
		t.Run(name, func(t *testing.T) {
			r := newRigWithStopCommand(t)
			r.step(Stop{"s"})
			_, command := r.stopSignals()
			if after {
				r.exit(0)
			}
			r.step(StopCommandEnded{Name: "s", Run: command, Leftover: true})
			if !after {
				r.exit(0)
			}
			r.wantState(Killing)
			if runs := r.killedRuns(); !slices.Contains(runs, command) {
				t.Errorf("runs %v were killed, not %d", runs, command)
			}
			r.step(Start{"s"})
			r.wantState(Killing)
			r.step(RunEnded{"s", command})
			r.wantState(Starting)
		})
	}
}

func TestLoopTellsTheEndOfAStopCommandFromTheEndOfItsService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t, func(u *Unit) {
			u.Policy = testPolicy
			u.Policy.StopCommand = []string{"ask"}
		})
		main, _ := b.newestRun()
		if err := b.Do(t.Context(), Stop{"s"}); err != nil {
			t.Fatal(err)
		}
		command, spec := b.newestRun()
		if command == main || !slices.Equal(spec.Argv, []string{"ask"}) {
			t.Fatalf("run %d: %+v", command, spec)
		}
		b.procs.end(main, 0, 0)
		synctest.Wait()
		b.wantState(t, Stopping)
		b.endNewestProcess(0)
		b.wantState(t, Down)
		b.shutdown(t)
	})
}

func TestASuccessCodeIsAsGoodAsZero(t *testing.T) {
	for code, want := range map[int]State{0: Down, 3: Down, 4: Backoff} {
		r := newRig(t)
		p := testPolicy
		p.RestartPolicy, p.SuccessCodes, p.IsConfiguredTask = RestartOnFailure, []int{3}, true
		r.step(Add{Name: "s", Policy: new(p), Want: WantUp})
		r.spawned()
		r.exit(code)
		if s := r.service(); s.state != want || s.succeeded != (want == Down) {
			t.Errorf("code %d: %s, done %t, cause %s", code, s.state, s.succeeded, s.lastExit.Cause)
		}
	}
}
