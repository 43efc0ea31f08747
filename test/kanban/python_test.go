package kanban_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
	"hinit/kanban"
)

// TestPythonDispatchesBeside checks the service beside two Python dispatchers, one of which ignores
// the dispatch lock. All three are killed in turn, and no task may run twice.
func TestPythonDispatchesBeside(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	python, err := exec.LookPath("python3")
	if err != nil {
		testkit.SkipOrFail(t, err.Error())
	}
	script, err := filepath.Abs("testdata/dispatcher.py")
	if err != nil {
		t.Fatal(err)
	}
	b := makeBoardContainer(t, "  max_in_progress: 8\n  failure_limit: 50\n")
	b.extraEnv = []string{"HERMES_KANBAN_CLAIM_TTL_SECONDS=20"} // The short claim lifetime is for dispatchers that die before their workers start.
	s := b.board()                                              // Open the board before other processes do.
	defer s.Close()
	b.boot()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for _, more := range [][]string{nil, {"unguarded"}} {
		all.Go(func() {
			b.restartInside(ctx, append([]string{python, script, b.dir + "/home/kanban.db", bin + "/example-agent"}, more...))
		})
	}

	var ids []string
	more := func(n int) {
		for range n {
			ids = append(ids, b.create(s, kanban.Task{Title: "x", Assignee: []string{"coder", "ops"}[len(ids)%2], Body: "sleep 30ms"}))
		}
	}
	more(90)
	kinds := []func(cmdline, environ string) bool{
		isDispatcher,
		func(cmdline, _ string) bool {
			return strings.Contains(cmdline, script) && !strings.Contains(cmdline, "unguarded")
		},
		func(cmdline, _ string) bool {
			return strings.Contains(cmdline, script) && strings.Contains(cmdline, "unguarded")
		},
	}
	signals := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM}
	kills := make([]int, len(kinds))
	ours, theirs := 0, 0
	next := time.Now()
	b.awaitLong("every task to be done", func() bool {
		b.operate(s)
		st, err := s.Stats(b.Context(), time.Now())
		b.check(err)
		if turn := kills[0] + kills[1] + kills[2]; turn < 18 && time.Now().After(next) { // Limit the kills, so that even a slow machine gets the work done.
			for _, pid := range b.outside(kinds[turn%3]) {
				_ = syscall.Kill(pid, signals[turn%3]) // Signal the program too, because nsenter does not forward signals.
			}
			kills[turn%3]++
			next = time.Now().Add(400 * time.Millisecond)
		}
		if st.ByStatus[kanban.Done] < len(ids) {
			return false
		}
		if ours, theirs = b.startedBy(s, ids); ours == 0 || theirs == 0 { // Only one kind of dispatcher has started workers so far.
			for _, pid := range b.outside(isDispatcher) { // Kill the service, which is faster than the Python dispatchers.
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			more(10)
		}
		return ours > 0 && theirs > 0
	})
	if why, err := os.ReadFile(filepath.Join(b.dir, "locks/violated")); err == nil {
		t.Errorf("a task had two workers: %s", why)
	}
	b.checkEvents(s, ids)
	t.Logf("%d runs by the service, %d by Python; kills %v", ours, theirs, kills)
}

// startedBy counts the claims of the service and of other dispatchers.
func (b *boardContainer) startedBy(s *kanban.Store, ids []string) (service, others int) {
	b.Helper()
	for _, id := range ids {
		events, err := s.Events(b.Context(), id, 0)
		b.check(err)
		for _, e := range events {
			switch {
			case e.Kind != "claimed":
			case strings.Contains(e.Payload, fmt.Sprintf(`.%d", "expires"`, e.RunID)):
				service++
			default:
				others++
			}
		}
	}
	return service, others
}

// restartInside restarts a program in the container's namespaces until the context ends.
func (b *boardContainer) restartInside(ctx context.Context, argv []string) {
	for ctx.Err() == nil {
		cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", fmt.Sprint(b.cmd.Process.Pid), "-p", "-m", "--"}, argv...)...)
		cmd.Env = append(b.env(), b.extraEnv...)
		cmd.WaitDelay = time.Second // The command could outlive nsenter, so kill it.
		out, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return
		}
		if cmd.ProcessState == nil || cmd.ProcessState.Exited() && !cmd.ProcessState.Success() {
			b.Errorf("%q: %v\n%s", argv, err, out)
			return
		}
	}
}
