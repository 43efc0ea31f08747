package sandbox

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// runAllTests selects the long forms of the tests: go test ./sandbox -args -full.
var runAllTests = flag.Bool("full", false, "run the long forms of the tests")

// runDuring starts a command, waits until it runs, calls do, and returns how the command ended.
func runDuring(t *testing.T, s *Sandbox, req Request, do func()) (Result, error) {
	t.Helper()
	var out syncBuffer
	if req.Stdout == nil {
		req.Stdout = &out
	}
	req.Command = "echo begun; " + req.Command
	type end struct {
		res Result
		err error
	}
	done := make(chan end, 1)
	go func() {
		res, err := s.Exec(context.Background(), req)
		done <- end{res, err}
	}()
	retryUntilNil(t, func() error {
		if !strings.Contains(fmt.Sprint(req.Stdout), "begun") {
			return errors.New("it has not begun")
		}
		return nil
	})
	do()
	e := <-done
	return e.res, e.err
}

// checkLost fails the test unless err is a LostError with this state and this text.
func checkLost(t *testing.T, err error, state State, text string) {
	t.Helper()
	var lost *LostError
	if !errors.As(err, &lost) || !lost.Began || lost.Container.State != state || !strings.Contains(err.Error(), text) {
		t.Errorf("want lost, state %q, %q: %v", state, text, err)
	}
}

// checkLostByRemoval checks the error of a command whose container docker rm -f has removed. The engine
// kills the container first, so the client may see the exit code.
func checkLostByRemoval(t *testing.T, err error) {
	t.Helper()
	var lost *LostError
	if errors.As(err, &lost) && lost.Container.State == Exited {
		checkLost(t, err, Exited, "exit code 137")
		return
	}
	checkLost(t, err, Gone, "the container was removed")
}

// TestRealRecovery changes a sandbox from outside, and checks the current and the next command
// (contract, 16 and 19.8).
func TestRealRecovery(t *testing.T) {
	_, s := newRealSandbox(t, nil)
	runs := func() string { out, _ := runForOutput(t, s, "cat /workspace/runs 2>/dev/null | wc -l"); return out }
	const work = "echo x >> /workspace/runs; sleep 600"
	checkOutput(t, s, "mkdir -p /src/of/mine; cd /src/of/mine", "")
	t.Run("removed between commands: the next one runs in a new container", func(t *testing.T) {
		first := s.ID()
		dockerCmd(t, "rm", "-f", first)
		checkOutput(t, s, "echo hello; pwd", "hello\n/src/of/mine") // The new container has no such directory.
		if s.ID() == first || s.ID() == "" {
			t.Error("it is the old one")
		}
		checkOutput(t, s, "echo again", "again")
		if _, res := runForOutput(t, s, "exit 7"); res.Code != 7 {
			t.Error(res)
		}
	})
	t.Run("removed under a command: lost, not run again", func(t *testing.T) {
		_, err := runDuring(t, s, Request{Command: work}, func() { dockerCmd(t, "rm", "-f", s.ID()) })
		checkLostByRemoval(t, err)
		if n := runs(); n != "1" {
			t.Errorf("it ran %s times", n)
		}
	})
	t.Run("removed under a command that may be run again", func(t *testing.T) {
		var n atomic.Int32
		res, err := runDuring(t, s, Request{
			Command: "echo x >> /workspace/runs; [ $(wc -l < /workspace/runs) -ge 3 ] || sleep 600", Repeatable: true,
		}, func() { n.Add(1); dockerCmd(t, "rm", "-f", s.ID()) })
		if err != nil || res.Code != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		if n := runs(); n != "3" {
			t.Errorf("it ran %s times", n)
		}
	})
	t.Run("a command that prints the engine's words", func(t *testing.T) {
		id := s.ID()
		var out bytes.Buffer
		res, err := s.Exec(t.Context(), Request{Command: "echo x >> /workspace/words; echo 'Error: No such container; nginx is not running'; exit 1", Stdout: &out, Repeatable: true})
		if err != nil || res.Code != 1 || s.ID() != id {
			t.Errorf("%+v, %v", res, err)
		}
		checkOutput(t, s, "wc -l < /workspace/words", "1")
	})
	t.Run("stopped: started again", func(t *testing.T) {
		id := s.ID()
		_, err := runDuring(t, s, Request{Command: "sleep 600"}, func() { dockerCmd(t, "stop", "-t", "0", id) })
		checkLost(t, err, Exited, "the container has ended")
		checkOutput(t, s, "echo up", "up")
		if s.ID() != id {
			t.Error("it is another one")
		}
	})
	t.Run("the first process killed", func(t *testing.T) {
		id := s.ID()
		_, err := runDuring(t, s, Request{Command: "sleep 600"}, func() { dockerCmd(t, "kill", id) })
		checkLost(t, err, Exited, "exit code 137")
		checkOutput(t, s, "echo up", "up")
	})
	t.Run("the helper killed", func(t *testing.T) {
		id := s.ID()
		checkOutput(t, s, "sleep 987650 >/dev/null 2>&1 &", "")
		res, err := s.Exec(t.Context(), Request{Command: "sleep 987651 & kill -9 $PPID; sleep 987651"})
		checkLost(t, err, Running, "the container runs")
		if err := checkProcessEnded(t, id, "sleep 987651"); err != nil {
			t.Error("nobody has ended it:", err)
		}
		if checkProcessEnded(t, id, "sleep 987650") == nil {
			t.Error("what an earlier command left behind has ended too")
		}
		checkOutput(t, s, "echo back", "back")
		if s.ID() != id {
			t.Error(res, "it is another one")
		}
	})
	t.Run("out of memory: the command", func(t *testing.T) {
		id := s.ID()
		_, res := runForOutput(t, s, "tail -c 600m /dev/zero | tail >/dev/null; x=$(head -c 900m /dev/zero | tr '\\0' x); exit 3")
		if s.ID() != id {
			t.Error("it is another one")
		}
		_ = res
		if res, err := s.Exec(t.Context(), Request{Argv: []string{"tail", "-c", "900m", "/dev/zero"}}); err != nil || res.Code != 137 || !res.OOM {
			t.Errorf("%+v, %v", res, err)
		}
		checkOutput(t, s, "echo alive", "alive")
	})
	t.Run("one recovery for any number of callers", func(t *testing.T) {
		dockerCmd(t, "rm", "-f", s.ID())
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() { checkOutput(t, s, fmt.Sprint("echo ", i), fmt.Sprint(i)) })
		}
		all.Wait()
		if ids := dockerCmd(t, "ps", "-aq", "--filter", "label="+LabelProfile+"="+s.key.Profile); strings.Contains(ids, "\n") {
			t.Errorf("there are several: %q", ids)
		}
	})
}

// TestRealPausedUnderCommand checks that a command survives a pause of its container, and that a
// warning reports the pause.
func TestRealPausedUnderCommand(t *testing.T) {
	var w warnings
	_, s := newRealSandbox(t, func(o *Options) { o.Warn = w.add })
	// The command starts few processes, because runc can't freeze a container that is starting one on a
	// busy machine.
	res, err := runDuring(t, s, Request{Command: "until [ -e /workspace/go ]; do sleep 1; done"}, func() {
		dockerCmd(t, "pause", s.ID())
		retryUntilNil(t, func() error {
			if !w.contain("is paused, and the command with it") {
				return errors.New("nobody is told")
			}
			return nil
		})
		dockerCmd(t, "unpause", s.ID())
		checkOutput(t, s, "touch /workspace/go", "")
	})
	if err != nil || res.Code != 0 {
		t.Errorf("%+v, %v", res, err)
	}
}

// sandboxOf returns the handle of a sandbox without an open connection.
func sandboxOf(m *Manager, id string) *Sandbox {
	s := m.newSandbox(Key{}, nil)
	s.id, s.adopted = id, true
	return s
}

// TestRealPausedBeforeCommand checks that a command for a paused container fails at once, also over
// an open connection.
func TestRealPausedBeforeCommand(t *testing.T) {
	m, s := newRealSandbox(t, nil)
	checkOutput(t, s, "echo warm", "warm")
	dockerCmd(t, "pause", s.ID())
	defer dockerCmd(t, "unpause", s.ID())
	cold := sandboxOf(m, s.ID())
	for name, s := range map[string]*Sandbox{"warm": s, "cold": cold} {
		begin := time.Now()
		_, err := s.Exec(t.Context(), Request{Command: "true", Timeout: 3 * time.Second})
		if down := (*StateError)(nil); !errors.As(err, &down) || !strings.Contains(err.Error(), "is paused; resume it with: docker unpause") {
			t.Errorf("%s: %v", name, err)
		}
		t.Logf("%s: %v", name, time.Since(begin))
	}
}

// TestRealAdoptedIsNotStarted checks that a killed adopted container is not restarted silently,
// because its processes and in-memory files are lost.
func TestRealAdoptedIsNotStarted(t *testing.T) {
	m, s := newRealSandbox(t, nil)
	adopted, err := m.Adopt(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	checkOutput(t, adopted, "echo warm", "warm")
	dockerCmd(t, "kill", s.ID())
	_, err = adopted.Exec(t.Context(), Request{Command: "true"})
	if down := (*StateError)(nil); !errors.As(err, &down) || down.Container.State != Exited {
		t.Errorf("%v", err)
	}
}

// TestRealAcrossProcesses checks that a process finds the sandbox and state of an earlier process
// (contract, 19.11).
func TestRealAcrossProcesses(t *testing.T) {
	m, s := newRealSandbox(t, func(o *Options) { o.Session = "shared" })
	id := s.ID()
	checkOutput(t, s, "cd /tmp; export KEPT=1; echo x > /tmp/file; (while :; do date > /tmp/loop; sleep 0.05; done) >/dev/null 2>&1 &", "")
	host, _ := runForOutput(t, s, "hostname")
	job, err := s.Start(t.Context(), Request{Command: "sleep 1000"})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if state := dockerCmd(t, "inspect", "-f", "{{.State.Status}} {{.State.StartedAt}}", id); !strings.HasPrefix(state, "running") {
		t.Fatal(state)
	}
	other := realManager(t, m.opts)
	s = openSandbox(t, other, "")
	if s.ID() != id {
		t.Fatal("it is another container")
	}
	checkOutput(t, s, "pwd", "/tmp")
	checkOutput(t, s, "hostname; echo $KEPT; pwd; cat /tmp/file", host+"\n1\n/tmp\nx")
	retryUntilNil(t, func() error {
		a, _ := runForOutput(t, s, "stat -c %y /tmp/loop")
		b, _ := runForOutput(t, s, "sleep 0.1; stat -c %y /tmp/loop")
		if a == b {
			return errors.New("the loop has ended")
		}
		return nil
	})
	if jobs, err := jobsOf(t, s); err != nil || len(jobs) != 1 || jobs[0].ID != job.ID || !jobs[0].Running {
		t.Errorf("%+v, %v", jobs, err)
	}
	if list, err := other.List(t.Context()); err != nil || len(list) < 1 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := removeSandboxes(t.Context(), other, Key{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := other.Sweep(t.Context(), SweepOptions{MaxAge: time.Nanosecond}); err != nil {
		t.Fatal(err)
	}
	if _, err := other.engine.Inspect(t.Context(), id); !errors.Is(err, ErrGone) {
		t.Error("it is not removed:", err)
	}
	for _, dir := range []string{runDir, recordsDir} {
		if entries, _ := os.ReadDir(filepath.Join(m.opts.State, dir)); len(entries) != 0 {
			t.Errorf("%s: %d are left", dir, len(entries))
		}
	}
}

// TestRealTwoProcessesMakeOne checks that simultaneous clients share one container.
func TestRealTwoProcessesMakeOne(t *testing.T) {
	requireEngine(t)
	o := realOptions(t)
	removeAtCleanup(t, o)
	var clients []*exec.Cmd
	for range 4 {
		clients = append(clients, helperProcess(t, o, "run", "echo x >> /workspace/began"))
	}
	for _, c := range clients {
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
	}
	s := openSandbox(t, realManager(t, o), "")
	checkOutput(t, s, "wc -l < /workspace/began", "4")
	if ids := dockerCmd(t, "ps", "-aq", "--filter", "label="+LabelProfile+"="+o.Profile); strings.Contains(ids, "\n") {
		t.Errorf("there are several: %q", ids)
	}
}

// TestRealCrashes kills a client at each crash point. The next sweep or the next client must clean
// up or use the leftovers.
func TestRealCrashes(t *testing.T) {
	for _, point := range []string{"locked", "create", "created", "started", "attach", "helper"} {
		t.Run(point, func(t *testing.T) {
			requireEngine(t)
			o := realOptions(t)
			removeAtCleanup(t, o)
			client := helperProcess(t, o, "crash-"+point, "echo x")
			if err := client.Wait(); err == nil || client.ProcessState.ExitCode() != -1 {
				t.Fatalf("it did not crash: %v", err)
			}
			s := openSandbox(t, realManager(t, o), "") // The next client must use the leftovers without waiting.
			checkOutput(t, s, "echo next", "next")
			if ids := dockerCmd(t, "ps", "-aq", "--filter", "label="+LabelProfile+"="+o.Profile); strings.Contains(ids, "\n") {
				t.Errorf("there are several: %q", ids)
			}
		})
	}
}

// TestRealCrowd runs many commands of several clients in several sandboxes. Each command must run
// once and give its own output.
func TestRealCrowd(t *testing.T) {
	requireEngine(t)
	sandboxes, clients, each := 2, 10, 10
	if *runAllTests {
		sandboxes, clients, each = 10, 50, 20
	}
	o := realOptions(t)
	removeAtCleanup(t, o)
	m := realManager(t, o)
	var boxes []*Sandbox
	for i := range sandboxes {
		boxes = append(boxes, openSandbox(t, m, fmt.Sprint("t", i)))
	}
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for n := range each {
				s := boxes[(c+n)%sandboxes]
				word := fmt.Sprintf("c%d-n%d-%s", c, n, s.key.Task)
				var out bytes.Buffer
				res, err := s.Exec(t.Context(), Request{
					Argv: []string{"sh", "-c", "cat; echo " + word + " >> /tmp/log; sleep 0.01; exit " + fmt.Sprint(n)}, Stdin: strings.NewReader(word), Stdout: &out,
				})
				if err != nil || res.Code != n || out.String() != word {
					t.Errorf("%s: %+v, %v, %q", word, res, err, out.String())
				}
			}
		})
	}
	all.Wait()
	total := 0
	for _, s := range boxes {
		log, _ := runForOutput(t, s, "sort /tmp/log | uniq -c")
		for line := range strings.Lines(log) {
			total++
			if f := strings.Fields(line); f[0] != "1" || !strings.HasSuffix(f[1], "-"+s.key.Task) {
				t.Errorf("in %s: %s", s.key.Task, line)
			}
		}
		if err := checkProcessEnded(t, s.ID(), "exit "); err != nil {
			t.Error(err)
		}
	}
	if total != clients*each {
		t.Errorf("%d commands ran, want %d", total, clients*each)
	}
}

func jobsOf(t *testing.T, s *Sandbox) ([]Job, error) {
	t.Helper()
	d, err := s.Describe(t.Context())
	return d.Jobs, err
}
