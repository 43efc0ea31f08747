package runs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/internal/proc"
	"hinit/internal/runs"
	"hinit/internal/runs/local"
	"hinit/internal/testkit"
	"hinit/internal/testproc"
)

// tracker is shared by all tests, because a process can become a subreaper only once.
var tracker *runs.Tracker

func TestMain(m *testing.M) {
	testproc.Main()
	testkit.IsolateProcess()
	var err error
	if tracker, err = local.NewTracker(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// testTimeout is the longest time that a test waits for an event. A passing test waits less.
const testTimeout = 2 * time.Minute

// newRequest returns the request for a run of a test process with a log.
func newRequest(t *testing.T, role string, params ...string) runs.StartRequest {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return runs.StartRequest{
		Tag: t.Name(), Template: "test", Profile: "coder", Output: f, Log: path, Grace: 200 * time.Millisecond,
		Spec: proc.Spec{Argv: testproc.Argv(role, params...), Env: os.Environ()},
	}
}

func startRun(t *testing.T, o runs.StartRequest) client.Run {
	t.Helper()
	r, err := tracker.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// awaitEnd waits until a run has ended, and returns it.
func awaitEnd(t *testing.T, id string) client.Run {
	t.Helper()
	timeout := time.After(testTimeout)
	for {
		changed := tracker.Changed()
		r, err := tracker.Find(id)
		if err != nil {
			t.Fatal(err)
		}
		if r.End != nil {
			return r
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("run %+v does not end", r)
		}
	}
}

// awaitLog waits until the log of a run contains text, and returns the whole log.
func awaitLog(t *testing.T, path, text string) string {
	t.Helper()
	for deadline := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			return string(b)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log has %q, not %q", b, text)
		}
	}
}

func TestExitIsReportedExactly(t *testing.T) {
	for _, code := range []int{0, 1, 75, 255} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			r := startRun(t, newRequest(t, "exit", strconv.Itoa(code)))
			if r.PID == 0 || r.ID == "" {
				t.Fatalf("started as %+v", r)
			}
			r = awaitEnd(t, r.ID)
			if r.End.Code == nil || *r.End.Code != code || r.End.Signal != nil || r.StopReason != "" || r.End.ExitUnknown {
				t.Errorf("ended as %+v, want code %d", r.End, code)
			}
		})
	}
}

func TestSignalOfAnotherIsNotOurs(t *testing.T) {
	r := startRun(t, newRequest(t, "sleep"))
	awaitLog(t, r.Log, "ready")
	if r.StartTicks == 0 {
		t.Error("a run without a start time can't be told from another process")
	}
	if err := syscall.Kill(r.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r = awaitEnd(t, r.ID)
	if r.End.Signal == nil || *r.End.Signal != 9 || r.End.Cause != "signal" || r.StopReason != "" || r.End.MaxRSS == 0 {
		t.Errorf("ended as %+v, asked %q", r.End, r.StopReason)
	}
}

// A stop must also end a worker that ignores TERM, and its daemon that has left the session.
func TestStopEndsTheWholeTree(t *testing.T) {
	for _, role := range [][]string{{"obey", "7"}, {"deaf"}, {"escape", "clean", "deaf"}, {"escape", "tagged", "deaf"}} {
		t.Run(strings.Join(role, "-"), func(t *testing.T) {
			r := startRun(t, newRequest(t, role[0], role[1:]...))
			awaitLog(t, r.Log, "\n")
			if _, err := tracker.Stop(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
			r = awaitEnd(t, r.ID)
			if r.StopReason != client.RunStopped {
				t.Errorf("asked to end because of %q", r.StopReason)
			}
			if role[0] == "obey" && (r.End.Code == nil || *r.End.Code != 7) {
				t.Errorf("ended as %+v, want code 7", r.End)
			}
			wantNoProcess(t, r)
		})
	}
}

// wantNoProcess fails the test if a process of the run is alive. Each has the tag of the run in its environment, or is a child
// of this process.
func wantNoProcess(t *testing.T, r client.Run) {
	t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range dirs {
		env, _ := os.ReadFile(path)
		if bytes.Contains(env, []byte(proc.TagVar+"="+r.Service+":")) {
			t.Errorf("%s is still a process of %s", path, r.Service)
		}
	}
}

func TestWhatAWorkerLeavesIsEnded(t *testing.T) {
	o := newRequest(t, "exit", "0")
	o.Spec.Argv = []string{"/bin/sh", "-c", "trap '' TERM; sleep 1000 & echo $! ; exit 3"}
	r := awaitEnd(t, startRun(t, o).ID)
	if r.End.Code == nil || *r.End.Code != 3 || r.StopReason != "" {
		t.Errorf("ended as %+v, asked %q", r.End, r.StopReason)
	}
	b, _ := os.ReadFile(r.Log)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	if _, alive := proc.StartTicks(pid); alive {
		t.Errorf("process %d, which the worker left behind, lives on", pid)
	}
}

func TestLimitEndsARun(t *testing.T) {
	o := newRequest(t, "deaf")
	o.TimeLimit = 50 * time.Millisecond
	r := awaitEnd(t, startRun(t, o).ID)
	if r.StopReason != client.RunTimedOut || r.End.Signal == nil && r.End.Code == nil {
		t.Errorf("ended as %+v, asked %q", r.End, r.StopReason)
	}
}

func TestATagStartsOneProcess(t *testing.T) {
	var mu sync.Mutex
	ids, pids := make(map[string]bool), make(map[int]bool)
	var all sync.WaitGroup
	for range 8 {
		o := newRequest(t, "sleep")
		all.Go(func() {
			r, err := tracker.Start(context.Background(), o)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			ids[r.ID], pids[r.PID] = true, true
		})
	}
	all.Wait()
	if len(ids) != 1 || len(pids) != 1 {
		t.Errorf("one tag has runs %v, processes %v", ids, pids)
	}
	for id := range ids {
		_, _ = tracker.Stop(t.Context(), id)
		first := awaitEnd(t, id)
		if again := startRun(t, newRequest(t, "sleep")); again.ID != id || again.End == nil || again.PID != first.PID {
			t.Errorf("asked again after the end, the tag means %+v, not %+v", again, first)
		}
	}
}

func TestACommandThatIsNotThere(t *testing.T) {
	o := newRequest(t, "exit")
	o.Spec.Argv = []string{"/nonexistent/hermes"}
	r := startRun(t, o)
	if r.End == nil || r.End.Cause != "spawn" || !strings.Contains(r.End.Error, "/nonexistent/hermes") || r.PID != 0 {
		t.Errorf("started as %+v, end %+v", r, r.End)
	}
}

// Since must report each start and each end of a run once, in the order in which they happened.
func TestSinceTellsWhatHasHappened(t *testing.T) {
	_, cursor := tracker.RunsSince(0)
	a := startRun(t, newRequest(t, "sleep"))
	got, cursor := tracker.RunsSince(cursor)
	if len(got) != 1 || got[0].ID != a.ID || got[0].End != nil {
		t.Fatalf("after the start it tells %+v", got)
	}
	_, _ = tracker.Stop(t.Context(), a.ID)
	awaitEnd(t, a.ID)
	if got, cursor = tracker.RunsSince(cursor); len(got) != 1 || got[0].End == nil {
		t.Fatalf("after the end it tells %+v", got)
	}
	if got, _ = tracker.RunsSince(cursor); len(got) != 0 {
		t.Errorf("without news it tells %+v", got)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	n := runs.MaxEndedRuns + 100
	if testing.Short() {
		t.Skip("starts a thousand processes")
	}
	first := ""
	for i := range n {
		o := newRequest(t, "exit")
		o.Tag = fmt.Sprint("bounded/", i)
		o.Spec.Argv = []string{"/bin/true"}
		r := awaitEnd(t, startRun(t, o).ID)
		if i == 0 {
			first = r.ID
		}
	}
	if _, err := tracker.Find(first); err == nil {
		t.Errorf("the first of %d runs is still remembered", n)
	}
	if all, _ := tracker.RunsSince(0); len(all) > runs.MaxEndedRuns {
		t.Errorf("%d runs are remembered, %d at most are meant to be", len(all), runs.MaxEndedRuns)
	}
}

func TestTags(t *testing.T) {
	for tag, good := range map[string]bool{"default/t_1234abcd/7": true, "": false, "a:b": false, "a b": false, "ü": false, strings.Repeat("a", 121): false} {
		if (runs.CheckTag(tag) == "") != good {
			t.Errorf("%q: %q", tag, runs.CheckTag(tag))
		}
	}
}

// An ended run must keep only short texts. Otherwise 1,000 ended runs with an error that names a directory of 4 kB take 20 MB,
// and 40 MB in each list.
func TestAnEndedRunKeepsLittleOfLongWords(t *testing.T) {
	o := newRequest(t, "exit", "0")
	o.Log = "/" + strings.Repeat("\x01", 3800)
	o.Spec.Dir = "/" + strings.Repeat(strings.Repeat("\x01", 250)+"/", 15)
	r, err := tracker.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	r = awaitEnd(t, r.ID)
	if len(r.End.Error) > 1100 || len(r.Log) > 1100 || !strings.HasPrefix(o.Log, strings.TrimSuffix(r.Log, "…")) || r.End.Error == "" {
		t.Errorf("it keeps %d bytes of its error and %d of its log's path", len(r.End.Error), len(r.Log))
	}
}
