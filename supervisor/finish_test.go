package supervisor

import (
	"os"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/proc"
)

// registerServiceDir registers a service with a finish command, as an s6 service directory defines it.
func (b *loopBench) registerServiceDir(t *testing.T, change ...func(*Unit)) {
	t.Helper()
	p := s6Policy
	p.RunsFinish, p.FinishTimeout, p.PermanentFinishCodes = true, 5*time.Second, []int{125}
	u := Unit{
		Name: "s", Kind: KindService, Policy: p, Spec: proc.Spec{Argv: []string{"./run", "s"}},
		FinishProgram: "./finish",
	}
	for _, f := range change {
		f(&u)
	}
	if err := b.Register(t.Context(), u, WantUp); err != nil {
		t.Fatal(err)
	}
}

// newestRun returns the newest run: the main process or the finish command.
func (b *loopBench) newestRun() (run uint64, spec proc.Spec) {
	b.procs.mu.Lock()
	defer b.procs.mu.Unlock()
	spec = b.procs.specs[len(b.procs.specs)-1]
	return spec.ID, spec
}

// endNewestProcess ends the newest process, and waits until the loop has processed its exit.
func (b *loopBench) endNewestProcess(code int) {
	run, _ := b.newestRun()
	b.procs.end(run, code, 0)
	synctest.Wait()
}

func (b *loopBench) wantState(t *testing.T, state State) *Service {
	t.Helper()
	s := b.Snapshot().Find("s")
	if s.State != state {
		t.Fatalf("state %s, want %s (%s)", s.State, state, s.Reason)
	}
	return s
}

func TestLoopStartsTheNextRunASecondAfterTheFinishCommandEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t)
		for range 3 {
			run, _ := b.newestRun()
			b.endNewestProcess(1)
			s := b.wantState(t, Finishing)
			finish, spec := b.newestRun()
			if finish == run || s.Run != run || s.PID != 0 || !slices.Equal(spec.Argv, []string{"./finish", "1", "0", "s", strconv.Itoa(s.LastExit.PID)}) {
				t.Fatalf("run %d is finished by %d: %+v, %+v", run, finish, spec, s)
			}
			time.Sleep(2 * time.Second)
			b.endNewestProcess(0)
			if s := b.wantState(t, Backoff); time.Until(s.NextStart) != time.Second {
				t.Fatalf("next start in %v", time.Until(s.NextStart))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			b.wantState(t, Up)
		}
		if err := b.Do(t.Context(), StayDown{"s"}); err != nil {
			t.Fatal(err)
		}
		b.endNewestProcess(0)
		b.endNewestProcess(0)
		b.wantState(t, Down)
		b.shutdown(t)
	})
}

func TestLoopKillsAFinishCommandAfterItsTimeAndNotBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t)
		b.endNewestProcess(0)
		begin := time.Now()
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		b.wantState(t, Finishing)
		if len(b.procs.signals) != 0 {
			t.Fatalf("signals %q", b.procs.signals)
		}
		b.procs.setDiesOnSignal()
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		b.wantState(t, Backoff)
		if want := []string{"killed"}; !slices.Equal(b.procs.signals, want) || time.Since(begin) != 5*time.Second {
			t.Errorf("signals %q after %v", b.procs.signals, time.Since(begin))
		}
		b.shutdown(t)
	})
}

func TestLoopGoesOnWhenTheFinishCommandCannotBeStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t)
		b.procs.setSpawnErr(&proc.SpawnError{Object: "./finish", Err: os.ErrPermission})
		b.endNewestProcess(1)
		b.wantState(t, Backoff)
		b.procs.setSpawnErr(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		b.registerServiceDir(t, func(u *Unit) { u.FinishProgram = "" })
		b.endNewestProcess(1)
		b.wantState(t, Backoff)
		b.shutdown(t)
	})
}

func TestLoopEndsWithinTheBudgetThoughAFinishCommandHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t, func(u *Unit) { u.Policy.FinishTimeout = 0 })
		b.endNewestProcess(1)
		b.wantState(t, Finishing)
		begin := time.Now()
		b.signals <- os.Interrupt
		<-b.exitCode
		if took := time.Since(begin); took > 8*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestLoopHandsOverTheFilesOfAUnit(t *testing.T) {
	files := make([]*os.File, 3)
	for i := range files {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.registerServiceDir(t, func(u *Unit) { u.StdOverrides = [3]*os.File{files[0], files[1], files[2]} })
		for _, what := range []string{"run", "finish"} {
			if _, spec := b.newestRun(); !slices.Equal(spec.Files, files) {
				t.Errorf("the %s gets %v", what, spec.Files)
			}
			b.endNewestProcess(1)
		}
		b.shutdown(t)
	})
	for i, f := range files {
		if _, err := f.Stat(); (err == nil) == (i == 1) {
			t.Errorf("descriptor %d: %v; at the end of the container only stdout is to be closed", i, err)
		}
	}
}
