package supervisor

import (
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/internal/proc"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

func TestMain(m *testing.M) {
	testproc.Main()
	testkit.IsolateProcess()
	goleak.VerifyTestMain(m)
}

// stdoutSink gives every service the same pipe.
type stdoutSink struct{ w *os.File }

func (s stdoutSink) Pipes(string) (_, _ *os.File, _ error) {
	dup := func() *os.File {
		fd, _ := syscall.Dup(int(s.w.Fd()))
		syscall.CloseOnExec(fd)
		return os.NewFile(uintptr(fd), "stdout")
	}
	return dup(), dup(), nil
}

func (stdoutSink) Tail(_ string, done func([]string)) { go done(nil) }

// startRealLoop runs a loop over real processes. At the end of the test it ends the loop and all processes.
func startRealLoop(t *testing.T) (*Loop, *os.File) {
	t.Helper()
	return startRealLoopWithin(t, 3*time.Second)
}

// startRealLoopWithin is startRealLoop with another budget for the end.
func startRealLoopWithin(t *testing.T, budget time.Duration) (*Loop, *os.File) {
	t.Helper()
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	children, signals := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	l := NewLoop(Config{
		Procs: procs, Logs: stdoutSink{w}, ShutdownBudget: budget, SIGCHLD: children, Signals: signals,
		OnSignal: func(os.Signal) Event { return Shutdown{Reason: "end of the test"} },
	})
	ended := make(chan int, 1)
	go func() { ended <- l.Run() }()
	t.Cleanup(func() {
		signals <- syscall.SIGTERM
		select {
		case <-ended:
		case <-time.After(testTimeout):
			t.Error("the loop does not end")
		}
		signal.Stop(children)
		_, _ = r.Close(), w.Close()
	})
	return l, r
}

// testTimeout is the longest time that a test waits for an event. A passing test waits less.
const testTimeout = 40 * time.Second

func awaitSnapshot(t *testing.T, l *Loop, what string, cond func(*Snapshot) bool) *Snapshot {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		changed := l.Changed()
		s := l.Snapshot()
		if cond(s) {
			return s
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("waited %v for: %s; now %+v", testTimeout, what, s.Services[0])
		}
	}
}

func newRealUnit(name string, role ...string) Unit {
	p := testPolicy
	p.Backoff.Initial, p.Backoff.Max = 10*time.Millisecond, 10*time.Millisecond
	p.Grace = 300 * time.Millisecond
	return Unit{
		Name: name, Kind: KindService, Policy: p,
		Spec: proc.Spec{Argv: testproc.Argv(role[0], role[1:]...), Env: os.Environ()},
	}
}

func TestKillNineTwentyTimesLeavesTheRightCountAndNothingElse(t *testing.T) {
	l, _ := startRealLoop(t)
	if err := l.Register(t.Context(), newRealUnit("s", "sleep"), WantUp); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		s := awaitSnapshot(t, l, "a running process", func(s *Snapshot) bool {
			v := s.Find("s")
			return v.State == Up && v.Restarts == i
		}).Find("s")
		if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	awaitSnapshot(t, l, "20 restarts", func(s *Snapshot) bool { v := s.Find("s"); return v.State == Up && v.Restarts == 20 })
}

func TestADeafServiceIsKilledAfterItsGrace(t *testing.T) {
	l, out := startRealLoop(t)
	if err := l.Register(t.Context(), newRealUnit("s", "deaf"), WantUp); err != nil {
		t.Fatal(err)
	}
	_, _ = out.Read(make([]byte, 64))
	if err := l.Do(t.Context(), Stop{"s"}); err != nil {
		t.Fatal(err)
	}
	s := awaitSnapshot(t, l, "down", func(s *Snapshot) bool { return s.Find("s").State == Down }).Find("s")
	if s.LastExit.Signal != int(syscall.SIGKILL) || s.LastExit.Cause != CauseOperator {
		t.Errorf("exit %+v", s.LastExit)
	}
}

func TestNothingOfAServiceIsAliveAfterStopThoughItsHelperEscaped(t *testing.T) {
	l, out := startRealLoop(t)
	if err := l.Register(t.Context(), newRealUnit("s", "escape", "clean", "deaf"), WantUp); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, _ := out.Read(buf)
	daemon, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	main := l.Snapshot().Find("s").PID
	start := time.Now()
	if err := l.Do(t.Context(), Stop{"s"}); err != nil {
		t.Fatal(err)
	}
	awaitSnapshot(t, l, "down", func(s *Snapshot) bool { return s.Find("s").State == Down })
	took := time.Since(start)
	for _, pid := range []int{main, daemon} {
		// A process that has ended keeps its PID until it is reaped, but does nothing any more.
		if stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			t.Errorf("process %d is still there: %s", pid, stat)
		}
	}
	if took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
