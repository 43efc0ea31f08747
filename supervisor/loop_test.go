package supervisor

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"hinit/internal/proc"
)

// fakeProcs is a fake kernel. Tests start and end its processes.
type fakeProcs struct {
	mu           sync.Mutex
	pid          int
	live         map[uint64]int
	ended        []proc.Exit
	signals      []string
	groupOOM     *bool // whether the control groups of ended processes report an OOM kill; nil without a control group
	diesOnSignal bool  // whether a stop signal ends the process at once
	sigchld      chan os.Signal
	spawnErr     error
	specs        []proc.Spec
	rest         bool
	noSIGCHLD    bool // whether fakeProcs sends no SIGCHLD
}

func newFakeProcs() *fakeProcs {
	return &fakeProcs{pid: 100, live: map[uint64]int{}, sigchld: make(chan os.Signal, 1)}
}

func (f *fakeProcs) Spawn(spec proc.Spec) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.spawnErr != nil {
		return 0, f.spawnErr
	}
	f.pid++
	f.specs = append(f.specs, spec)
	f.live[spec.ID] = f.pid
	return f.pid, nil
}

func (f *fakeProcs) setDiesOnSignal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.diesOnSignal = true
}

// setSpawnErr makes every spawn fail with err. With nil, spawns work again.
func (f *fakeProcs) setSpawnErr(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spawnErr = err
}

// end ends a process from outside the loop.
func (f *fakeProcs) end(id uint64, code, signal int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.endProcess(id, code, signal)
}

func (f *fakeProcs) endProcess(id uint64, code, signal int) {
	f.ended = append(f.ended, proc.Exit{ID: id, PID: f.live[id], Code: code, Signal: signal, OOM: f.groupOOM})
	delete(f.live, id)
	if f.noSIGCHLD {
		return
	}
	select {
	case f.sigchld <- syscall.SIGCHLD:
	default:
	}
}

func (f *fakeProcs) Signal(id uint64, signal int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = append(f.signals, syscall.Signal(signal).String())
	if f.live[id] != 0 && f.diesOnSignal {
		f.endProcess(id, -1, signal)
	}
	return nil
}

func (f *fakeProcs) SignalGroup(id uint64, signal int) error { return f.Signal(id, signal) }

func (f *fakeProcs) SignalTree(id uint64, signal int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signals = append(f.signals, "tree "+syscall.Signal(signal).String())
	if f.live[id] == 0 {
		return 0
	}
	f.endProcess(id, -1, signal)
	return 1
}

func (f *fakeProcs) SignalDescendants(int) { f.rest = true }

func (f *fakeProcs) Reap(_ bool, each func(proc.Exit)) bool {
	for {
		f.mu.Lock()
		if len(f.ended) == 0 {
			defer f.mu.Unlock()
			return len(f.live) == 0
		}
		x := f.ended[0]
		f.ended = f.ended[1:]
		f.mu.Unlock()
		each(x)
	}
}

func (f *fakeProcs) CheckForTracer(...int) {}

func (f *fakeProcs) setNoSIGCHLD(quiet bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noSIGCHLD = quiet
}

func (f *fakeProcs) hasNoSIGCHLD() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.noSIGCHLD
}

func (f *fakeProcs) RunOf(pid int) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, main := range f.live {
		if main == pid {
			return id
		}
	}
	return 0
}

func (f *fakeProcs) RecordMembers(uint64)                  {}
func (f *fakeProcs) EndedRuns(ids []uint64) []uint64       { return ids }
func (f *fakeProcs) Forget(uint64)                         {}
func (f *fakeProcs) Pipes(string) (_, _ *os.File, _ error) { return nil, nil, nil }

func (f *fakeProcs) Tail(_ string, done func([]string)) { go done([]string{"last words"}) }

// loopBench runs a loop over fake processes inside a synctest bubble.
type loopBench struct {
	*Loop
	procs    *fakeProcs
	signals  chan os.Signal
	exitCode chan int
}

func newBench(t *testing.T) *loopBench {
	t.Helper()
	return newBenchWith(t, func(*loopBench, *Config) {})
}

func newBenchWith(t *testing.T, change func(*loopBench, *Config)) *loopBench {
	t.Helper()
	b := &loopBench{procs: newFakeProcs(), signals: make(chan os.Signal, 1), exitCode: make(chan int, 1)}
	cfg := Config{
		Procs: b.procs, Logs: b.procs, ShutdownBudget: 8 * time.Second, SIGCHLD: b.procs.sigchld, Signals: b.signals,
		OnSignal: func(os.Signal) Event { return Shutdown{Reason: "signal"} },
	}
	change(b, &cfg)
	b.Loop = NewLoop(cfg)
	b.machine.Random = func() float64 { return 0.5 }
	go func() { b.exitCode <- b.Run() }()
	return b
}

func (b *loopBench) register(t *testing.T, name string, want Want) {
	t.Helper()
	if err := b.Register(t.Context(), Unit{Name: name, Kind: KindGateway, Policy: testPolicy}, want); err != nil {
		t.Fatal(err)
	}
}

func (b *loopBench) shutdown(t *testing.T) {
	t.Helper()
	b.procs.setDiesOnSignal()
	b.signals <- syscall.SIGTERM
	if code := <-b.exitCode; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestSweepShowsTheEndOfWhatTheKernelHasNotToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "s", WantUp)
		b.procs.setNoSIGCHLD(true)
		b.procs.end(b.Snapshot().Find("s").Run, 1, 0)
		synctest.Wait()
		if s := b.Snapshot().Find("s"); s.State != Up {
			t.Fatalf("nobody has told, and it is %s", s.State)
		}
		if err := b.ReapNow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s := b.Snapshot().Find("s"); s.State != Backoff || s.LastExit.Code != 1 {
			t.Errorf("%+v", s)
		}
		b.procs.setNoSIGCHLD(false)
		b.shutdown(t)
	})
}

func TestLoopRestartsACrashedServiceAfterItsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "s", WantUp)
		first := b.Snapshot().Find("s")
		if first.State != Up || first.PID == 0 {
			t.Fatalf("after registration: %+v", first)
		}
		b.procs.end(first.Run, 1, 0)
		synctest.Wait()
		s := b.Snapshot().Find("s")
		if s.State != Backoff || s.LastExit.Cause != CauseCrash || !slices.Equal(s.LastExit.Tail, []string{"last words"}) {
			t.Fatalf("after the crash: %+v, exit %+v", s, s.LastExit)
		}
		if got := time.Until(s.NextStart); got != time.Second {
			t.Errorf("next start in %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if s := b.Snapshot().Find("s"); s.State != Up || s.Restarts != 1 || s.PID == first.PID {
			t.Errorf("after the delay: %+v", s)
		}
		b.shutdown(t)
	})
}

func TestLoopAnswersAreVisibleWhenTheyReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "s", WantDown)
		b.procs.setDiesOnSignal()
		for range 10 {
			if err := b.Do(t.Context(), Start{"s"}); err != nil {
				t.Fatal(err)
			}
			if got := b.Snapshot().Find("s").State; got != Up {
				t.Fatalf("state %s after start", got)
			}
			if err := b.Do(t.Context(), Stop{"s"}); err != nil {
				t.Fatal(err)
			}
			if got := b.Snapshot().Find("s").Want; got != WantDown {
				t.Fatalf("want %s after stop", got)
			}
			synctest.Wait()
		}
		b.shutdown(t)
	})
}

func TestLoopRefusesWhatMakesNoSense(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		if err := b.Do(t.Context(), Start{"nobody"}); !errors.Is(err, ErrUnknown) {
			t.Errorf("error %v", err)
		}
		u := Unit{Name: "cmd", Kind: KindCmd, Policy: Policy{IsCMD: true, StopSignal: sigTerm, Grace: time.Second}}
		if err := b.Register(t.Context(), u, WantUp); err != nil {
			t.Fatal(err)
		}
		if err := b.Do(t.Context(), Stop{"cmd"}); !errors.Is(err, ErrIsCMD) {
			t.Errorf("error %v", err)
		}
		b.register(t, "deaf", WantUp)
		b.signals <- syscall.SIGTERM
		synctest.Wait()
		if err := b.Do(t.Context(), Start{"deaf"}); !errors.Is(err, ErrStopping) {
			t.Errorf("error %v", err)
		}
		if !b.Snapshot().Stopping {
			t.Error("the snapshot does not say that the container is stopping")
		}
		if code := <-b.exitCode; code != 128+9 {
			t.Errorf("exit code %d, want 137: the CMD had to be killed", code)
		}
		if err := b.Do(context.Background(), Start{"deaf"}); !errors.Is(err, ErrStopping) {
			t.Errorf("error %v", err)
		}
	})
}

func TestLoopShutdownUsesItsBudgetOnlyForTheStubborn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "s", WantUp)
		start := time.Now()
		b.signals <- syscall.SIGTERM
		synctest.Wait()
		<-b.exitCode
		if took := time.Since(start); took < 7*time.Second || took > 8*time.Second {
			t.Errorf("took %v", took)
		}
		if want := []string{"terminated", "continued", "tree killed"}; !slices.Equal(b.procs.signals, want) {
			t.Errorf("signals %q, want %q", b.procs.signals, want)
		}
		if !b.procs.rest {
			t.Error("orphans were not ended")
		}
	})
}

func TestLoopReportsASpawnFailureAndRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.procs.setSpawnErr(&proc.SpawnError{Object: "/no/such", Err: syscall.EIO})
		b.register(t, "s", WantUp)
		s := b.Snapshot().Find("s")
		if s.State != Backoff || s.LastExit.Cause != CauseSpawn || !strings.Contains(s.LastExit.Error, "/no/such") {
			t.Fatalf("%+v, exit %+v", s, s.LastExit)
		}
		b.procs.setSpawnErr(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := b.Snapshot().Find("s"); s.State != Up {
			t.Errorf("%+v", s)
		}
		b.shutdown(t)
	})
}

func TestLoopDoesNotRetryWhatIsMissingButAStartDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.procs.setSpawnErr(&proc.SpawnError{Object: "/no/such", Err: syscall.ENOENT})
		b.register(t, "s", WantUp)
		time.Sleep(time.Hour)
		synctest.Wait()
		if s := b.Snapshot().Find("s"); s.State != Failed || s.Run != 1 || !strings.Contains(s.Reason, "/no/such") {
			t.Errorf("%+v", s)
		}
		b.procs.setSpawnErr(nil)
		if err := b.Do(t.Context(), Start{Name: "s"}); err != nil {
			t.Error(err)
		}
		if s := b.Snapshot().Find("s"); s.State != Up {
			t.Errorf("%+v", s)
		}
		b.shutdown(t)
	})
}

func TestLoopSeesTheKernelsOutOfMemoryKills(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kills atomic.Uint64
		b := newBenchWith(t, func(_ *loopBench, cfg *Config) { cfg.OOMKills = kills.Load })
		b.register(t, "s", WantUp)
		kills.Store(1)
		b.procs.end(b.Snapshot().Find("s").Run, -1, sigKill)
		synctest.Wait()
		if got := b.Snapshot().Find("s").LastExit.Cause; got != CauseOOM {
			t.Errorf("cause %s", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		b.procs.end(b.Snapshot().Find("s").Run, -1, sigKill)
		synctest.Wait()
		if got := b.Snapshot().Find("s").LastExit.Cause; got != CauseSignal {
			t.Errorf("cause of a kill -9 by hand: %s", got)
		}
		b.shutdown(t)
	})
}

// The kernel kills two services for lack of memory, and hinit sees both ends at once. The second one must not have the cause
// "signal", as if somebody had killed it by hand.
func TestOfTwoServicesKilledForMemoryAtOnceTheSecondHadTheCauseSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kills atomic.Uint64
		b := newBenchWith(t, func(_ *loopBench, cfg *Config) { cfg.OOMKills = kills.Load })
		for _, name := range []string{"one", "two"} {
			b.register(t, name, WantUp)
		}
		kills.Store(2)
		for i, want := range []Cause{CauseOOM, CauseOOM, CauseSignal} {
			name := []string{"one", "two"}[i%2]
			b.procs.end(b.Snapshot().Find(name).Run, -1, sigKill)
			synctest.Wait()
			if got := b.Snapshot().Find(name).LastExit.Cause; got != want {
				t.Errorf("end %d: cause %s, want %s", i, got, want)
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		b.shutdown(t)
	})
}

// The kernel kills a child of the service for lack of memory. A SIGKILL to the service much later must not count as an OOM
// kill.
func TestAnOldKillForMemoryDoesNotExplainALaterKill(t *testing.T) {
	for _, group := range []*bool{nil, new(true)} { // once without a control group, and once with a control group that counts the same kill
		synctest.Test(t, func(t *testing.T) {
			var kills atomic.Uint64
			b := newBenchWith(t, func(_ *loopBench, cfg *Config) { cfg.OOMKills = kills.Load })
			b.register(t, "s", WantUp)
			kills.Store(1)
			for range 3 {
				if err := b.ReapNow(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(oomSamplePeriod)
			}
			b.procs.groupOOM = group
			b.procs.end(b.Snapshot().Find("s").Run, -1, sigKill)
			synctest.Wait()
			if got := b.Snapshot().Find("s").LastExit.Cause; got != CauseSignal {
				t.Errorf("cause of a kill -9 by hand: %s", got)
			}
			b.shutdown(t)
		})
	}
}

// manualLogs stores the callback of Tail, so that the test can call it later.
type manualLogs struct {
	LogSink

	done func([]string)
}

func (h *manualLogs) Tail(_ string, done func([]string)) { h.done = done }

// A re-execution must work although callbacks with last lines wait for the loop. If the loop waited for the callbacks too, both
// would wait for ever.
func TestAReexecutionWasRefusedWhenManyServicesHadJustEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logs := &manualLogs{}
		l := NewLoop(Config{Procs: newFakeProcs(), Logs: logs})
		l.units["s"], l.runs[1] = &unit{Unit: &Unit{Name: "s"}}, "s"
		l.handleExit(proc.Exit{ID: 1, PID: 7})
		for len(l.requests) < cap(l.requests) {
			l.Post(Tick{})
		}
		logs.done([]string{"bye"})
		<-l.requests
		synctest.Wait()
	})
}

func TestLoopForgetsARemovedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.procs.setDiesOnSignal()
		b.register(t, "s", WantUp)
		if err := b.Do(t.Context(), Remove{"s"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := b.Snapshot().Find("s"); s != nil {
			t.Errorf("still there: %+v", s)
		}
		b.shutdown(t)
	})
}

// The loop must publish the snapshot before the event. A reader of the event that a service was dropped must not find the
// service in the snapshot.
func TestLoopWhoIsToldOfAnEventFindsItInTheSnapshot(t *testing.T) {
	l := NewLoop(Config{Procs: newFakeProcs()})
	turn := func(r request) {
		t.Helper()
		before := l.history.Last()
		l.handleRequest(r, nil)
		if l.history.Last() != before {
			t.Errorf("%T is told before the snapshot shows it", r.event)
		}
		if l.publish(); l.history.Last() == before {
			t.Errorf("%T is not told", r.event)
		}
	}
	turn(request{event: Add{Name: "web", Policy: &Policy{}}, unit: &Unit{Name: "web"}})
	turn(request{event: Remove{"web"}})
	records, _ := l.history.Since(0)
	if last := records[len(records)-1]; !last.Dropped || l.Snapshot().Find("web") != nil {
		t.Errorf("the last record is %+v, the snapshot shows %+v", last, l.Snapshot().Find("web"))
	}
}

func TestLoopSleepsWhileNothingHappens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.register(t, "s", WantUp)
		before := b.Snapshot()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if b.Snapshot() != before {
			t.Error("the snapshot was rebuilt though nothing happened")
		}
		b.shutdown(t)
	})
}

func TestRingReportsLostEventsToASlowReader(t *testing.T) {
	var r Ring
	for range ringSize + 10 {
		r.add(Record{Reason: "x"})
	}
	r.publish()
	recs, lost := r.Since(0)
	if lost != 10 || len(recs) != ringSize || recs[0].Seq != 11 {
		t.Errorf("lost %d, %d records from %d", lost, len(recs), recs[0].Seq)
	}
	recs, lost = r.Since(recs[len(recs)-1].Seq)
	if lost != 0 || len(recs) != 0 {
		t.Errorf("nothing new: lost %d, %d records", lost, len(recs))
	}
	changed := r.Changed()
	r.add(Record{Reason: "y"})
	select {
	case <-changed:
		t.Error("news of what is not to be seen yet")
	default:
	}
	r.publish()
	select {
	case <-changed:
	default:
		t.Error("no news of an append")
	}
}

func TestRingReadersNeverSeeTornRecords(t *testing.T) {
	var r Ring
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200_000 {
			r.add(Record{Reason: "x"})
			r.publish()
		}
	}()
	cursor, seen := uint64(0), uint64(0)
	for r.Last() < 200_000 {
		recs, lost := r.Since(cursor)
		for _, rec := range recs {
			cursor += lost + 1
			lost = 0
			if rec.Seq != cursor {
				t.Fatalf("record %d where %d was due", rec.Seq, cursor)
			}
			seen++
		}
		cursor += lost
	}
	<-done
	if seen == 0 {
		t.Error("saw nothing")
	}
}

func TestTheMachineKnowsTheSystemsSignals(t *testing.T) {
	for mine, theirs := range map[int]syscall.Signal{
		sigHup: syscall.SIGHUP, sigInt: syscall.SIGINT, sigQuit: syscall.SIGQUIT, sigKill: syscall.SIGKILL, sigTerm: syscall.SIGTERM,
		sigCont: syscall.SIGCONT, sigStop: syscall.SIGSTOP,
	} {
		if mine != int(theirs) {
			t.Errorf("%d is not %v", mine, theirs)
		}
	}
}

func TestTheOrderThatEndsTheLoopIsAnswered(t *testing.T) {
	for range 20 {
		procs := newFakeProcs()
		l := NewLoop(Config{Procs: procs, Logs: procs, ShutdownBudget: time.Second, SIGCHLD: procs.sigchld})
		ended := make(chan int, 1)
		go func() { ended <- l.Run() }()
		answer := l.enqueue(t.Context(), request{event: Shutdown{Code: 3}})
		if code := <-ended; code != 3 {
			t.Fatalf("code %d", code)
		}
		if err := answer(); err != nil {
			t.Fatal(err)
		}
	}
}
