package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// TestRecovery checks which commands run again after the loss of their container (contract, 19.8).
func TestRecovery(t *testing.T) {
	run := func(t *testing.T, during func(f *fakeEngine, c *Container, n int, out io.Writer) (int, error), safe bool) (*fakeEngine, *Sandbox, string, Result, error) {
		t.Helper()
		f := newFake()
		n := 0
		f.runCommand = func(c *Container, out io.Writer) (int, error) {
			n++
			return during(f, c, n, out)
		}
		s := mustOpen(t, fakeManager(t, f, nil), Key{})
		var out bytes.Buffer
		res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}, Stdout: &out, Repeatable: safe})
		return f, s, out.String(), res, err
	}
	for _, text := range []string{
		"Error: No such container: abc", "Error response from daemon: no such container", "container abc is not running", "nginx is not running",
	} {
		t.Run("the text of a command is not believed: "+text, func(t *testing.T) {
			f, _, out, res, err := run(t, func(_ *fakeEngine, _ *Container, _ int, out io.Writer) (int, error) {
				fmt.Fprint(out, text)
				return 1, nil
			}, true)
			if err != nil || res.Code != 1 || out != text {
				t.Errorf("%+v, %v, %q", res, err, out)
			}
			f.wantCalls(t, "create", 1)
			f.wantCalls(t, "run", 1)
		})
	}
	for _, code := range []int{127, 1, 126, 137} {
		t.Run(fmt.Sprint("ordinary failure ", code), func(t *testing.T) {
			f, _, _, res, err := run(t, func(*fakeEngine, *Container, int, io.Writer) (int, error) { return code, nil }, true)
			if err != nil || res.Code != code {
				t.Errorf("%+v, %v", res, err)
			}
			f.wantCalls(t, "create", 1)
			f.wantCalls(t, "run", 1)
		})
	}
	gone := func(f *fakeEngine, c *Container, n int, _ io.Writer) (int, error) {
		if n == 1 {
			f.removeContainer(c.ID)
			return 137, nil
		}
		return 0, nil
	}
	t.Run("recover and retry", func(t *testing.T) {
		f, s, _, res, err := run(t, gone, true)
		if err != nil || res.Code != 0 || s.ID() != "new2" {
			t.Errorf("%+v, %v", res, err)
		}
		f.wantCalls(t, "create", 2)
		f.wantCalls(t, "run", 2)
	})
	t.Run("lost unless it is safe", func(t *testing.T) {
		f, s, _, _, err := run(t, gone, false)
		var lost *LostError
		if !errors.As(err, &lost) || !lost.Began || lost.Container.State != Gone || !errors.Is(err, ErrLost) {
			t.Fatalf("%v", err)
		}
		if !strings.Contains(err.Error(), "the container was removed") {
			t.Error(err)
		}
		f.wantCalls(t, "run", 1)
		if res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}}); err != nil || res.Code != 0 {
			t.Errorf("the next: %+v, %v", res, err)
		}
		f.wantCalls(t, "create", 2)
	})
	t.Run("once at most", func(t *testing.T) {
		f, _, _, _, err := run(t, func(f *fakeEngine, c *Container, _ int, _ io.Writer) (int, error) {
			f.removeContainer(c.ID)
			return 137, nil
		}, true)
		if !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		f.wantCalls(t, "run", 2)
	})
	t.Run("stopped: started again, and run, because it had not begun", func(t *testing.T) {
		f, s, _, _, err := run(t, func(*fakeEngine, *Container, int, io.Writer) (int, error) { return 0, nil }, false)
		if err != nil {
			t.Fatal(err)
		}
		f.changeContainer(s.ID(), func(c *Container) { c.State = Exited })
		res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}})
		if err != nil || res.Code != 0 {
			t.Errorf("%+v, %v", res, err)
		}
		f.wantCalls(t, "create", 1)
		f.wantCalls(t, "start", 2)
	})
	t.Run("killed for want of memory", func(t *testing.T) {
		_, _, _, _, err := run(t, func(f *fakeEngine, c *Container, _ int, _ io.Writer) (int, error) {
			f.changeContainer(c.ID, func(c *Container) { c.State, c.OOMKilled, c.ExitCode = Exited, true, 137 })
			return 137, nil
		}, false)
		if err == nil || !strings.Contains(err.Error(), "ran out of memory") {
			t.Error(err)
		}
	})
	t.Run("one recovery for any number of callers", func(t *testing.T) {
		f := newFake()
		s := mustOpen(t, fakeManager(t, f, nil), Key{})
		s.dir = "/src"
		f.removeContainer(s.ID())
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}}); err != nil || res.Code != 0 {
					t.Error(res, err)
				}
			})
		}
		all.Wait()
		f.wantCalls(t, "create", 2)
		first, second := f.specs[0], f.specs[1]
		if first.Labels[LabelTask] != second.Labels[LabelTask] || second.Dir != first.Dir || second.Image != first.Image {
			t.Errorf("%+v\n%+v", first, second)
		}
	})
}

// TestACommandInProcLeftATaskWithoutASandbox checks that a sandbox can be recreated although its
// last command changed to a directory in which no container may start.
func TestACommandInProcLeftATaskWithoutASandbox(t *testing.T) {
	f := newFake()
	s := mustOpen(t, fakeManager(t, f, nil), Key{})
	s.dir = "/proc/self"
	f.removeContainer(s.ID())
	if res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}}); err != nil || res.Code != 0 {
		t.Errorf("%+v, %v", res, err)
	}
	if made := f.specs[len(f.specs)-1]; made.Dir != "/root" {
		t.Errorf("it starts in %s", made.Dir)
	}
}

// TestACommandWasLostWhenItsEngineHadHung checks that a command gets its result although the engine
// that relays the helper's frames hung for a long time.
func TestACommandWasLostWhenItsEngineHadHung(t *testing.T) {
	oldAnswer, oldGiveUp := engineAnswerTimeout, silenceTimeout
	engineAnswerTimeout, silenceTimeout = 20*time.Second, askEngineDelay
	defer func() { engineAnswerTimeout, silenceTimeout = oldAnswer, oldGiveUp }()
	f := newFake()
	s := mustOpen(t, fakeManager(t, f, nil), Key{})
	asked := func() bool { return len(f.callsOf("inspect")) > 0 }
	ended := make(chan struct{})
	f.runCommand = func(*Container, io.Writer) (int, error) {
		f.mu.Lock()
		f.calls, f.helperMute, f.stalledCall = nil, true, "inspect"
		f.mu.Unlock()
		testkit.Until(t, "the engine is asked about the silent helper", asked)
		f.mu.Lock()
		f.helperMute, f.stalledCall = false, ""
		f.mu.Unlock()
		<-ended
		return 3, nil
	}
	time.AfterFunc(askEngineDelay+3*watchInterval, func() { close(ended) })
	if res, err := s.Exec(t.Context(), Request{Argv: []string{"work"}, Timeout: -1}); err != nil || res.Code != 3 {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestNobodyKnowsTheContainer checks that a command fails in time if the engine does not answer
// about its container.
func TestNobodyKnowsTheContainer(t *testing.T) {
	old := engineAnswerTimeout
	engineAnswerTimeout = 100 * time.Millisecond
	defer func() { engineAnswerTimeout = old }()
	f := newFake()
	s := mustOpen(t, fakeManager(t, f, nil), Key{})
	if _, err := s.Exec(t.Context(), Request{Argv: []string{"work"}}); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.helperMute, f.stalledCall = true, "inspect"
	f.mu.Unlock()
	if _, err := s.Exec(t.Context(), Request{Argv: []string{"work"}}); !errors.Is(err, ErrNoEngine) {
		t.Error(err)
	}
	f.wantCalls(t, "run", 1)
}

// TestNothingIsCopiedIntoWhatEnds checks that the helper is not copied into a container that is
// being removed. Otherwise the removal could delete the workspace's files.
func TestNothingIsCopiedIntoWhatEnds(t *testing.T) {
	for text, copies := range map[string]int{
		"OCI runtime exec failed: cannot exec in a stopped container":        0,
		"exec: stat /" + copiedHelperPrefix + "1: no such file or directory": 1,
	} {
		f := newFake(Container{ID: "a", State: Running})
		f.containers[0].Mounts = nil
		f.failures["exec"] = errors.New(text)
		m := fakeManager(t, f, func(o *Options) { o.AttachOnly = false })
		if _, err := m.connectAttached(t.Context(), *f.containers[0]); err == nil {
			t.Error("it is attached")
		}
		f.wantCalls(t, "copyin", copies)
	}
}

// TestStoppedWhileItStarts checks that the manager restarts a container that was stopped during its
// start.
func TestStoppedWhileItStarts(t *testing.T) {
	f := newFake(Container{ID: "a", State: Exited})
	f.failures["start a"] = errFake
	f.onStart = func(c *Container, n int) {
		if c.Started = time.Now(); n == 2 {
			delete(f.failures, "start a")
		}
	}
	if s := mustOpen(t, fakeManager(t, f, nil), Key{}); s.ID() != "a" {
		t.Errorf("it uses %s", s.ID())
	}
	f.wantCalls(t, "create", 0)
}

// TestMadeForAKilledProcess checks that the next client uses a container that the engine created
// for a killed process.
func TestMadeForAKilledProcess(t *testing.T) {
	f := newFake()
	m := fakeManager(t, f, nil)
	labels := AgentLabels(Key{})
	name := m.containerName(labels)
	f.failures["create "+name] = ErrNameTaken
	time.AfterFunc(100*time.Millisecond, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.containers = append(f.containers, &Container{ID: "late", Name: name, Labels: labels, State: Created, Mounts: gateMount})
	})
	if s := mustOpen(t, m, Key{}); s.ID() != "late" {
		t.Errorf("it uses %s", s.ID())
	}
}
