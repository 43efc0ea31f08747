package kanban_test

import (
	"fmt"
	"math/rand/v2"
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

// inside runs a program in the container's namespaces, and returns its output.
func (b *boardContainer) inside(argv ...string) string {
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(b.cmd.Process.Pid), "-p", "-m", "--"}, argv...)...)
	cmd.Env = append(b.env(), b.extraEnv...)
	out, _ := cmd.CombinedOutput() // Ignore the error: the task may have ended.
	return string(out)
}

func (b *boardContainer) subscribe(task string) {
	b.Helper()
	out, err := exec.Command("python3", "-c", `import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120)
db.execute("INSERT INTO kanban_notify_subs (task_id, platform, chat_id, created_at) VALUES (?, 'p', 'chat', 1)", (sys.argv[2],))
db.commit()`, b.home+"/kanban.db", task).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

// maxWorkers limits the workers in the storm.
const maxWorkers = 8

// liveAttempts counts the attempts with a live worker, and finds a task with live processes of two
// attempts.
func (b *boardContainer) liveAttempts() (count int, found string) {
	attempts := make(map[string]map[string]int) // Processes of each attempt, by task.
	at := make(map[string]bool)                 // Attempts with a live worker process.
	b.outside(func(cmdline, environ string) bool {
		var task, run string
		for kv := range strings.SplitSeq(environ, "\x00") {
			if v, is := strings.CutPrefix(kv, "HERMES_KANBAN_TASK="); is {
				task = v
			}
			if v, is := strings.CutPrefix(kv, "HERMES_KANBAN_RUN_ID="); is {
				run = v
			}
		}
		if task != "" && run != "" {
			if attempts[task] == nil {
				attempts[task] = make(map[string]int)
			}
			attempts[task][run]++
			if isWorker(cmdline, environ) {
				at[task+run] = true
			}
		}
		return false
	})
	for task, runs := range attempts {
		if len(runs) > 1 {
			found = fmt.Sprint(task, " ", runs)
		}
	}
	return len(at), found
}

type tally struct {
	sync.Mutex
	counts map[string]int
}

func (t *tally) add(what string) {
	t.Lock()
	defer t.Unlock()
	t.counts[what]++
}

// TestReclaimStorm reclaims, blocks and kills tasks and re-executes PID 1 while the service runs.
// No task may have two live attempts, and each must be done once.
func TestReclaimStorm(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	python, err := exec.LookPath("python3")
	if err != nil {
		testkit.SkipOrFail(t, err.Error())
	}
	script, err := filepath.Abs("testdata/reclaim.py")
	if err != nil {
		t.Fatal(err)
	}
	b := newBoardContainer(t, fmt.Sprintf("  max_in_progress: %d\n  failure_limit: 50\n", maxWorkers))
	s := b.board()
	defer s.Close()
	const open = 30 // Number of simultaneous tasks.
	var ids []string
	rng := rand.New(rand.NewPCG(1, 2))
	did := tally{counts: make(map[string]int)}
	var hands sync.WaitGroup
	defer hands.Wait()
	begin, kill, kills, most := time.Now(), time.Now(), 0, 0
	b.awaitLong("every task to be done", func() bool {
		n, found := b.liveAttempts()
		if again, twice := b.liveAttempts(); found != "" && twice == found { // The process may have ended during the search.
			t.Fatalf("live processes of two attempts: %s\n%s", found, b.unfinishedTasks())
		} else if most = max(most, min(n, again)); min(n, again) > maxWorkers {
			t.Fatalf("%d workers are alive; the cap is %d\n%s", n, maxWorkers, b.unfinishedTasks())
		}
		st, err := s.Stats(b.Context(), time.Now())
		b.check(err)
		storm := time.Since(begin) < *span
		for n := len(ids) - st.ByStatus[kanban.Done]; storm && n < open; n++ {
			ids = append(ids, b.create(s, kanban.Task{Title: "x", Assignee: []string{"coder", "ops"}[n%2], Body: []string{"sleep 700ms", "leave\nsleep 1s"}[n%2]}))
		}
		b.operate(s)
		if !storm {
			return st.ByStatus[kanban.Done] == len(ids)
		}
		running, err := s.Tasks(b.Context(), kanban.TaskFilter{Status: kanban.Running})
		b.check(err)
		if time.Since(kill) > min(2*time.Second, *span/5) { // Kill often enough for a short storm to see both.
			kill, kills = time.Now(), kills+1
			if kills%2 == 0 {
				if _, err := b.client.Reexec(b.Context(), ""); err == nil {
					did.add("re-execution of PID 1")
				}
			} else {
				for _, pid := range b.outside(isDispatcher) {
					_ = syscall.Kill(pid, syscall.SIGKILL)
					did.add("kill -9 of the service")
				}
			}
		}
		if len(running) == 0 {
			return false
		}
		id := running[rng.IntN(len(running))].ID
		switch rng.IntN(5) {
		case 0:
			hands.Go(func() {
				if strings.Contains(b.inside(bin+"/hinit-kanban", "reclaim", id, "storm"), "Reclaimed") {
					did.add("reclaim by the command line")
				}
			})
		case 1:
			hands.Go(func() {
				b.inside(python, script, b.home+"/kanban.db", id)
				did.add("reclaim by Python")
			})
		case 2:
			if ok, err := s.Block(b.Context(), time.Now(), id, "storm", 0); ok && err == nil {
				did.add("block and unblock")
			}
		case 3:
			for _, pid := range b.outside(func(_, environ string) bool { return strings.Contains(environ, "HERMES_KANBAN_TASK="+id) }) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				did.add("kill -9 of processes of workers")
			}
		}
		return false
	})
	hands.Wait()
	if why, err := os.ReadFile(filepath.Join(b.dir, "locks/violated")); err == nil {
		t.Errorf("a task had two workers: %s", why)
	}
	b.checkEvents(s, ids)
	b.await("the end of every worker", func() bool { return len(b.outside(isWorker)) == 0 })
	t.Logf("%d tasks, at most %d live workers: %v", len(ids), most, did.counts)
}
