package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/proc"
	"hinit/internal/testkit"
)

// makeServiceDir makes a service directory with a run script, and a finish script unless that is empty. It returns the unit
// for it.
func makeServiceDir(t *testing.T, name, run, finish string) Unit {
	t.Helper()
	dir := t.TempDir()
	script := func(name, text string) {
		if text == "" {
			return
		}
		if err := testkit.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text)); err != nil {
			t.Fatal(err)
		}
	}
	script("run", run)
	script("finish", finish)
	p := s6Policy
	p.Backoff.Initial, p.Backoff.Max, p.SpawnRetry = 10*time.Millisecond, 10*time.Millisecond, 50*time.Millisecond
	p.ReportsReadiness, p.RunsFinish, p.FinishTimeout, p.PermanentFinishCodes = false, true, time.Minute, []int{125}
	spec := proc.Spec{Env: os.Environ(), Dir: dir}
	u := Unit{Name: name, Kind: KindService, Policy: p, Spec: spec}
	u.Spec.Argv = []string{"./run", name}
	u.FinishProgram = "./finish"
	return u
}

func lineReader(t *testing.T, r *os.File) func() string {
	t.Helper()
	lines := bufio.NewScanner(r)
	return func() string {
		t.Helper()
		_ = r.SetReadDeadline(time.Now().Add(testTimeout))
		if !lines.Scan() {
			t.Fatalf("no line within %v: %v", testTimeout, lines.Err())
		}
		return lines.Text()
	}
}

func register(t *testing.T, l *Loop, u Unit, want Want) {
	t.Helper()
	if err := l.Register(t.Context(), u, want); err != nil {
		t.Fatal(err)
	}
}

func sendEvents(t *testing.T, l *Loop, events ...Event) {
	t.Helper()
	for _, e := range events {
		if err := l.Do(t.Context(), e); err != nil {
			t.Fatalf("%T: %v", e, err)
		}
	}
}

func awaitState(t *testing.T, l *Loop, state State) *Service {
	t.Helper()
	return awaitSnapshot(t, l, "s is "+string(state), func(s *Snapshot) bool { return s.Find("s").State == state }).Find("s")
}

// procState returns the state of a process as in proc_pid_stat(5), or 0 if there is none.
func procState(pid int) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	return b[strings.LastIndexByte(string(b), ')')+2]
}

func awaitCondition(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(testTimeout); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", testTimeout, what)
		}
	}
}

func TestFinishIsToldHowTheRunEndedAndRunsAlone(t *testing.T) {
	for _, c := range []struct {
		run, want string
		end       Event
	}{
		{"echo up; exit 3", "3 0 s", nil},
		{"echo up; exec sleep 1000", "256 15 s", Stop{"s"}},
		{"echo up; exec sleep 1000", "256 9 s", SignalMain{"s", sigKill, false}},
	} {
		t.Run(c.want, func(t *testing.T) {
			l, out := startRealLoop(t)
			line := lineReader(t, out)
			u := makeServiceDir(t, "s", c.run, `echo "$# $1 $2 $3 $4 $(pwd)"; exit 125`)
			register(t, l, u, WantUp)
			if got := line(); got != "up" {
				t.Fatalf("the run says %q", got)
			}
			if c.end != nil {
				sendEvents(t, l, c.end)
			}
			s := awaitSnapshot(t, l, "down after finish", func(s *Snapshot) bool {
				v := s.Find("s")
				return v.State == Down && v.LastExit != nil
			}).Find("s")
			if got, want := line(), fmt.Sprintf("4 %s %d %s", c.want, s.LastExit.PID, u.Spec.Dir); got != want {
				t.Errorf("finish was told %q, want %q", got, want)
			}
			if s.Want != WantDown || s.ReadySince.Before(s.ProcessSince) {
				t.Errorf("want %s, down since %v, fully since %v", s.Want, s.ProcessSince, s.ReadySince)
			}
		})
	}
}

func TestAServiceIsFullyDownOnlyAfterItsFinishCommand(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	register(t, l, makeServiceDir(t, "s", "echo up; exec sleep 1000", "echo finishing; read go < "+gate), WantUp)
	line()
	sendEvents(t, l, Stop{"s"})
	if got := line(); got != "finishing" {
		t.Fatalf("got %q", got)
	}
	s := awaitState(t, l, Finishing)
	if s.PID != 0 || !s.ReadySince.IsZero() || s.LastExit == nil || s.LastExit.Signal != sigTerm {
		t.Fatalf("while it finishes: %+v", s)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if s := awaitState(t, l, Down); s.ReadySince.IsZero() {
		t.Errorf("fully down: %+v", s)
	}
}

func TestAFinishCommandThatHangsDiesInTime(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	pid := 0
	// a slow machine may need longer until the process prints its PID
	for limit := 500 * time.Millisecond; pid == 0 && limit < testTimeout; limit *= 2 {
		output := filepath.Join(t.TempDir(), "finish")
		u := makeServiceDir(t, "s", "echo up $$; exec sleep 1000", `trap "" TERM; echo $$ >`+output+`; while :; do sleep 1000; done`)
		u.Name, u.Policy.FinishTimeout = limit.String(), limit
		register(t, l, u, WantUp)
		line()
		sendEvents(t, l, Stop{u.Name})
		awaitCondition(t, "down", func() bool { return l.Snapshot().Find(u.Name).State == Down })
		number, _ := os.ReadFile(output)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(number)))
	}
	if pid == 0 || procState(pid) != 0 {
		t.Errorf("finish command %d is still there, or never was", pid)
	}
}

func TestTheEndOfTheContainerWaitsForFinish(t *testing.T) {
	l, out := startRealLoopWithin(t, testTimeout)
	line := lineReader(t, out)
	register(t, l, makeServiceDir(t, "s", "echo up; exec sleep 1000", "sleep 0.2; echo finished"), WantUp)
	line()
	l.Post(Shutdown{Reason: "end"})
	<-l.Ended()
	if got := line(); got != "finished" {
		t.Errorf("got %q", got)
	}
}

func TestANewlineOnItsDescriptorMakesItReady(t *testing.T) {
	for _, fd := range []int{3, 1, 9} {
		t.Run(strconv.Itoa(fd), func(t *testing.T) {
			l, out := startRealLoop(t)
			line := lineReader(t, out)
			gate := filepath.Join(t.TempDir(), "gate")
			if err := syscall.Mkfifo(gate, 0o600); err != nil {
				t.Fatal(err)
			}
			// Only the three standard descriptors and the readiness descriptor may be open. The shell reads the script from
			// descriptor 10.
			u := makeServiceDir(t, "s", fmt.Sprintf(`for f in 3 4 5 6 7 8 9; do [ $f = %[1]d ] || [ ! -e /proc/$$/fd/$f ] || echo "$f is open" >&2; done
echo checked >&2; printf almost >&%[1]d; read go < %[2]s; echo >&%[1]d; exec sleep 1000`, fd, gate), "")
			u.Policy.ReportsReadiness, u.NotifyFD = true, fd
			register(t, l, u, WantUp)
			if got := line(); got != "checked" {
				t.Errorf("got %q", got)
			}
			s := awaitState(t, l, Up)
			if s.Ready || !s.ReadySince.IsZero() || !s.ReportsReadiness {
				t.Fatalf("before the newline: %+v", s)
			}
			if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
				t.Fatal(err)
			}
			s = awaitSnapshot(t, l, "ready", func(s *Snapshot) bool { return s.Find("s").Ready }).Find("s")
			if s.ReadySince.Before(s.ProcessSince) {
				t.Errorf("ready since %v, up since %v", s.ReadySince, s.ProcessSince)
			}
			sendEvents(t, l, SignalMain{"s", sigKill, false})
			awaitSnapshot(t, l, "not ready after its death", func(s *Snapshot) bool { return !s.Find("s").Ready })
		})
	}
}

func TestARunThatNeverSaysThatItIsReadyEndsLikeAnyOther(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	u := makeServiceDir(t, "s", "echo up; sleep 1000 & exit 1", "") // the remaining child keeps the descriptor open
	u.Policy.ReportsReadiness, u.NotifyFD = true, 3
	register(t, l, u, WantUp)
	for range 5 {
		line()
	}
	sendEvents(t, l, StayDown{"s"})
	awaitState(t, l, Down)
	if n := len(l.readinessPipes); n != 0 { // the loop has handled StayDown, and so all earlier events
		t.Errorf("%d notifiers are left", n)
	}
}

// PID 1 must not read all of /proc for each ended orphan while a descendant of a hook is alive.
func TestADaemonOfAHookMadePID1ReadAllOfProc(t *testing.T) {
	for name, may := range map[string]bool{"a service whose processes may stay": true, "another one": false} {
		t.Run(name, func(t *testing.T) {
			l, _ := startRealLoop(t)
			searches := &searchCounter{}
			inLoop := func(f func()) {
				if err := l.RunInLoop(t.Context(), f); err != nil {
					t.Error(err)
				}
			}
			inLoop(func() { searches.Spawner, l.cfg.Procs = l.cfg.Procs, searches })
			u := makeServiceDir(t, "s", "trap '' TERM; sleep 1000 & exit 0", "")
			u.Policy.LeaveDescendants, u.Policy.SingleRun, u.Policy.Grace = may, true, time.Minute
			register(t, l, u, WantUp)
			awaitState(t, l, Down)
			inLoop(func() {
				if searched := searches.n > 0; searched == may || len(l.lingeringRuns) > 0 || len(l.runs) > 0 {
					t.Errorf("%d searches of /proc, %d runs that wait for their processes, %d in all", searches.n, len(l.lingeringRuns), len(l.runs))
				}
			})
		})
	}
}

// searchCounter counts the searches of a loop for ended runs. Only the loop uses it.
type searchCounter struct {
	Spawner

	n int
}

func (s *searchCounter) EndedRuns(ids []uint64) []uint64 {
	s.n++
	return s.Spawner.EndedRuns(ids)
}

func TestAnInvalidReadinessDescriptorIsReported(t *testing.T) {
	l, _ := startRealLoop(t)
	u := makeServiceDir(t, "s", "exec sleep 1000", "")
	u.NotifyFD = MaxNotifyFD + 1
	register(t, l, u, WantUp)
	if s := awaitState(t, l, Backoff); !strings.Contains(s.Reason, "1024") {
		t.Errorf("reason %q", s.Reason)
	}
}

func TestPauseStopsTheProcessAndAStopWakesIt(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	register(t, l, makeServiceDir(t, "s", `trap "echo bye; exit 0" TERM; echo up; while :; do sleep 0.01; done`, ""), WantUp)
	line()
	pid := l.Snapshot().Find("s").PID
	sendEvents(t, l, Pause{"s", false})
	awaitCondition(t, "the process is stopped", func() bool { return procState(pid) == 'T' })
	if s := l.Snapshot().Find("s"); !s.Paused || s.State != Up {
		t.Errorf("paused: %+v", s)
	}
	sendEvents(t, l, Continue{"s", false})
	awaitCondition(t, "the process continues", func() bool { return procState(pid) != 'T' })
	if l.Snapshot().Find("s").Paused {
		t.Error("still shown as paused")
	}
	sendEvents(t, l, Pause{"s", false}, Stop{"s"})
	if got := line(); got != "bye" {
		t.Errorf("got %q", got)
	}
	if s := awaitState(t, l, Down); s.Paused {
		t.Error("paused though it is down")
	}
}

func TestSignalsReachTheProcessOrItsWholeGroup(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	run := `trap "echo main" USR1; mkfifo never
sh -c 'trap "echo child" USR1; exec 4<>never; echo up; while :; do read x <&4; done' &
while :; do wait; done`
	register(t, l, makeServiceDir(t, "s", run, ""), WantUp)
	line()
	sendEvents(t, l, SignalMain{"s", int(syscall.SIGUSR1), false})
	if got := line(); got != "main" {
		t.Errorf("got %q", got)
	}
	sendEvents(t, l, SignalMain{"s", int(syscall.SIGUSR1), true})
	got := []string{line(), line()}
	slices.Sort(got)
	if !slices.Equal(got, []string{"child", "main"}) {
		t.Errorf("got %q", got)
	}
	sendEvents(t, l, SignalMain{"s", sigKill, true}) // this signal kills the service and its child
}

func TestOnceRunsAServiceDirectoryOnce(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	register(t, l, makeServiceDir(t, "s", "echo run; exit 1", "echo finish"), WantDown)
	for range 3 {
		sendEvents(t, l, RunOnce{"s"})
		if a, b := line(), line(); a != "run" || b != "finish" {
			t.Fatalf("got %q, %q", a, b)
		}
		s := awaitState(t, l, Down)
		if s.Restarts != 0 || s.LastExit.Cause != CauseCrash || !s.Started {
			t.Fatalf("%+v, exit %+v", s, s.LastExit)
		}
	}
}

const ignoreTERMScript = `trap "echo deaf" TERM
sh -c 'trap "" TERM; echo $$; while :; do sleep 0.01; done' &
while :; do wait; done`

func TestATimeToDieKillsTheProcessOrItsGroupAndSparesTheRest(t *testing.T) {
	for _, c := range []struct {
		kill SignalScope
		left bool
	}{{ScopeMain, true}, {ScopeGroup, false}} {
		t.Run(strconv.Itoa(int(c.kill)), func(t *testing.T) {
			l, out := startRealLoop(t)
			line := lineReader(t, out)
			u := makeServiceDir(t, "s", ignoreTERMScript, "")
			u.Policy.KillNever, u.Policy.Grace, u.Policy.KillScope = false, 100*time.Millisecond, c.kill
			register(t, l, u, WantUp)
			child, err := strconv.Atoi(line())
			if err != nil {
				t.Fatal(err)
			}
			sendEvents(t, l, Stop{"s"})
			s := awaitState(t, l, Down)
			if s.LastExit.Signal != sigKill || s.LastExit.Cause != CauseOperator {
				t.Errorf("exit %+v", s.LastExit)
			}
			if !c.left {
				awaitCondition(t, "the group is gone", func() bool { return procState(child) == 0 || procState(child) == 'Z' })
			} else if procState(child) == 0 {
				t.Error("its child was not spared")
			}
			l.Post(Shutdown{Reason: "end"})
			<-l.Ended()
			awaitCondition(t, "its child has ended with the container", func() bool { return procState(child) == 0 || procState(child) == 'Z' })
		})
	}
}

func TestWithoutATimeToDieAStubbornServiceLivesUntilTheContainerEnds(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	register(t, l, makeServiceDir(t, "s", ignoreTERMScript, ""), WantUp)
	line()
	for range 3 {
		sendEvents(t, l, Stop{"s"})
		if got := line(); got != "deaf" {
			t.Fatalf("got %q", got)
		}
	}
	s := l.Snapshot().Find("s")
	if s.State != Stopping || procState(s.PID) == 0 {
		t.Fatalf("%+v", s)
	}
	l.Post(Shutdown{Reason: "end"})
	<-l.Ended()
	awaitCondition(t, "it has ended with the container", func() bool { return procState(s.PID) == 0 || procState(s.PID) == 'Z' })
}

func TestAScriptThatCannotRunIsTriedAgain(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	u := makeServiceDir(t, "s", "echo up; exec sleep 1000", "echo finish")
	run := filepath.Join(u.Spec.Dir, "run")
	if err := os.Chmod(run, 0o644); err != nil {
		t.Fatal(err)
	}
	register(t, l, u, WantUp)
	s := l.Snapshot().Find("s")
	if s.State != Backoff || s.Started || s.Want != WantUp || !strings.Contains(s.Reason, run) || !strings.Contains(s.Reason, "permission denied") {
		t.Fatalf("%+v", s)
	}
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := line(); got != "up" {
		t.Errorf("got %q", got)
	}
	awaitSnapshot(t, l, "started", func(s *Snapshot) bool { return s.Find("s").Started })
}

func TestAPipeBetweenAServiceAndItsLoggerOutlivesBoth(t *testing.T) {
	l, out := startRealLoop(t)
	line := lineReader(t, out)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	service := makeServiceDir(t, "s", "echo run $$; exec sleep 1000", "echo finish")
	service.StdOverrides[1] = w
	logger := makeServiceDir(t, "s/log", `while read x; do echo "logged $x"; done; echo "end of file"`, "")
	logger.StdOverrides[0] = r
	register(t, l, logger, WantUp)
	register(t, l, service, WantUp)
	said := func(want string) {
		t.Helper()
		if got := line(); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	said(fmt.Sprintf("logged run %d", l.Snapshot().Find("s").PID))
	for range 3 {
		old := l.Snapshot().Find("s").Run
		// Kill the logger before the service, because a logger that is killed while a line comes may lose the beginning of the
		// line.
		dying := l.Snapshot().Find("s/log").Run
		sendEvents(t, l, SignalMain{"s/log", sigKill, false})
		awaitSnapshot(t, l, "the logger is dead", func(s *Snapshot) bool { v := s.Find("s/log"); return v.PID == 0 || v.Run > dying })
		sendEvents(t, l, SignalMain{"s", sigKill, false})
		s := awaitSnapshot(t, l, "a new run", func(s *Snapshot) bool { v := s.Find("s"); return v.State == Up && v.Run > old }).Find("s")
		said("logged finish")
		said(fmt.Sprintf("logged run %d", s.PID))
	}
}

// PID 1 must read only a limited part of a readiness line. A service may write without end, as "cat /dev/zero >&3" does.
func TestAServiceThatNeverEndsItsLineKeptPID1Busy(t *testing.T) {
	for text, want := range map[string]bool{"up": false, "up\nmore": true, strings.Repeat("x", 3000) + "\n": true, strings.Repeat("x", 1<<20) + "\n": false} {
		n, err := newReadinessPipe(3)
		if err != nil {
			t.Fatal(err)
		}
		l := NewLoop(Config{})
		l.readinessPipes[1], l.runs[1] = n, "s"
		l.machine.Step(time.Now(), Add{Name: "s", Policy: &Policy{ReportsReadiness: true}, Want: WantUp})
		l.machine.Step(time.Now(), Spawned{"s", 7})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for n.awaitData() {
				l.readReadiness(1)
			}
		}()
		_, err = n.w.WriteString(text)
		n.closeWriter()
		<-done
		if ready := l.machine.services["s"].ready; ready != want {
			t.Errorf("after %d bytes it is ready: %v", len(text), ready)
		}
		if len(text) == 1<<20 && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("all of %d bytes was read: %v", len(text), err)
		}
	}
}
