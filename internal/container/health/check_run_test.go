package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/boot"
	"hinit/internal/proc"
	"hinit/supervisor"
)

type noLogs struct{}

func (noLogs) Pipes(string) (stdout, stderr *os.File, err error) {
	return nil, nil, errors.New("no log")
}
func (noLogs) Tail(_ string, done func([]string)) { done(nil) }

func startTestLoop(t *testing.T) *supervisor.Loop {
	t.Helper()
	procs, err := proc.New()
	if err != nil {
		t.Fatal(err)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	loop := supervisor.NewLoop(supervisor.Config{
		Procs: procs, Logs: noLogs{}, SIGCHLD: children, MuteSIGCHLD: proc.SIGCHLDSilencer(), OnSignal: func(os.Signal) supervisor.Event { return nil },
	})
	go loop.Run()
	t.Cleanup(func() {
		loop.Post(supervisor.Shutdown{})
		<-loop.Ended()
		signal.Stop(children)
	})
	return loop
}

func TestAnExecCheckIsRunToItsEnd(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	for _, tt := range []struct {
		script string
		code   int
		last   string
	}{
		{"echo one; echo two; exit 3", 3, "two"},
		{"echo on standard error >&2", 0, "on standard error"},
		{"kill -9 $$", 137, ""},
	} {
		code, last, err := h.RunCheck(t.Context(), "check/web/ask", proc.Spec{Argv: []string{"sh", "-c", tt.script}, Env: os.Environ()}, nil)
		if code != tt.code || last != tt.last || err != nil {
			t.Errorf("%s: code %d, %q, error %v", tt.script, code, last, err)
		}
	}
	if _, _, err := h.RunCheck(t.Context(), "check/web/ask", proc.Spec{Argv: []string{"/nowhere"}}, nil); err == nil {
		t.Error("a program that isn't there was run")
	}
}

// A program that writes a warning after its answer must pass the trial of a re-execution. The warning was taken for the answer.
func TestAWarningAfterTheAnswerWasTakenForTheAnswer(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	warnings, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer warnings.Close()
	spec := proc.Spec{Argv: []string{"sh", "-c", "echo 3; echo a warning >&2"}, Env: os.Environ()}
	code, last, err := h.RunCheck(t.Context(), "reexec/try", spec, warnings)
	if code != 0 || last != "3" || err != nil {
		t.Errorf("code %d, %q, error %v", code, last, err)
	}
	if said, err := os.ReadFile(warnings.Name()); string(said) != "a warning\n" {
		t.Errorf("the standard error is %q, %v", said, err)
	}
}

func TestAnExecCheckEndsInItsTime(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	ctx, done := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer done()
	spec := proc.Spec{Argv: []string{"sh", "-c", "sleep 60 & wait"}, Env: os.Environ()}
	if _, _, err := h.RunCheck(ctx, "check/web/ask", spec, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	for h.options.Loop.Snapshot().Find("check/web/ask") != nil {
		changed := h.options.Loop.Changed()
		if h.options.Loop.Snapshot().Find("check/web/ask") == nil {
			break
		}
		<-changed
	}
}

// A check that was too slow runs again at once if its period equals its timeout. The second run must give its own answer, not
// "exit code 137" from the kill of the first process. Otherwise one slow answer counts as two, and the service is restarted.
func TestAnExecCheckAfterASlowOneIsNotKilledWithIt(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	for range 20 {
		ctx, done := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, _, _ = h.RunCheck(ctx, "check/web/ask", proc.Spec{Argv: []string{"sleep", "60"}, Env: os.Environ()}, nil)
		done()
		code, last, err := h.RunCheck(t.Context(), "check/web/ask", proc.Spec{Argv: []string{"echo", "fine"}, Env: os.Environ()}, nil)
		if code != 0 || last != "fine" || err != nil {
			t.Fatalf("the check after a slow one has exit code %d, answer %q, error %v", code, last, err)
		}
	}
}

// A check must succeed although it leaves a process behind that ignores SIGTERM. The answer must not wait for the end of that
// process, and the next run must not get the exit code of its kill.
func TestAnExecCheckThatLeavesAStubbornProcessAnswers(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	for range 3 {
		spec := proc.Spec{Argv: []string{"sh", "-c", "trap '' TERM; sleep 60 & echo fine"}, Env: os.Environ()}
		code, last, err := h.RunCheck(t.Context(), "check/web/ask", spec, nil)
		if code != 0 || last != "fine" || err != nil {
			t.Errorf("code %d, %q, error %v", code, last, err)
		}
	}
}

// TestOneStrangerAMinute checks that hinit reports at most one notification of an unknown process per minute. A process
// that sends them in a loop must not fill the history.
func TestOneStrangerAMinute(t *testing.T) {
	h := &Health{options: Options{Loop: startTestLoop(t)}}
	for pid := range 5 {
		h.reportUnknownSender("web", pid+100)
	}
	if err := h.options.Loop.Do(t.Context(), supervisor.Tick{}); err != nil {
		t.Fatal(err)
	}
	records, _ := h.options.Loop.History().Since(0)
	var messages []string
	for _, r := range records {
		if strings.Contains(r.Reason, "is not taken") {
			messages = append(messages, r.Reason)
		}
	}
	if len(messages) != 1 || !strings.Contains(messages[0], "process 100") {
		t.Errorf("it told %s", fmt.Sprint(messages))
	}
}

// The search for shared memory must get the profile of each gateway, because a daemon that docker exec left behind is assigned
// by profile.
func TestTheSearchForSharedMemoryKnewNoProfile(t *testing.T) {
	loop := startTestLoop(t)
	unit := supervisor.Unit{Name: "gateway-coder", Profile: "coder", Kind: supervisor.KindGateway, Spec: proc.Spec{Argv: []string{"true"}}}
	if err := loop.Register(t.Context(), unit, supervisor.WantDown); err != nil {
		t.Fatal(err)
	}
	var got []boot.Gateway
	h := &Health{options: Options{Loop: loop}, MeasureProfiles: func(_ context.Context, list []boot.Gateway, _ string) ([]boot.Measurement, error) {
		got = list
		return nil, nil
	}}
	h.sharedMemory()
	if len(got) != 1 || got[0].Service != "gateway-coder" || got[0].Profile != "coder" {
		t.Errorf("%+v", got)
	}
}
