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

// inside runs a program in the container's namespaces, and returns what it wrote.
func (b *box) inside(argv ...string) string {
	cmd := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(b.cmd.Process.Pid), "-p", "-m", "--"}, argv...)...)
	cmd.Env = append(b.env(), b.more...)
	out, _ := cmd.CombinedOutput() // a task may have ended by then
	return string(out)
}

// subscribe lets a chat be told of a task, with the agent's statement.
func (b *box) subscribe(task string) {
	b.Helper()
	out, err := exec.Command("python3", "-c", `import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=120)
db.execute("INSERT INTO kanban_notify_subs (task_id, platform, chat_id, created_at) VALUES (?, 'p', 'chat', 1)", (sys.argv[2],))
db.commit()`, b.home+"/kanban.db", task).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
}

// twice finds a task that live processes of two attempts work on.
func (b *box) twice() (found string) {
	attempts := make(map[string]map[string]int) // by task: a process of each attempt
	b.outside(func(_, environ string) bool {
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
		}
		return false
	})
	for task, runs := range attempts {
		if len(runs) > 1 {
			found = fmt.Sprint(task, " ", runs)
		}
	}
	return found
}

// TestReclaimStorm reclaims by the command line and by Python while the service runs, completes, blocks and unblocks under the hands of
// workers, and kills the service and workers: no task ever has live processes of two attempts, and every attempt is closed.
func TestReclaimStorm(t *testing.T) {
	t.Parallel() // it waits
	python, err := exec.LookPath("python3")
	if err != nil {
		testkit.Cannot(t, err.Error())
	}
	script, err := filepath.Abs("testdata/reclaim.py")
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(t, "  max_in_progress: 8\n  failure_limit: 50\n")
	s := b.board()
	defer s.Close()
	n, storm := 30, 10*time.Second
	if *full {
		n, storm = 300, 4*time.Minute
	}
	var ids []string
	for i := range n {
		ids = append(ids, b.create(s, kanban.NewTask{Title: "x", Assignee: []string{"coder", "ops"}[i%2], Body: []string{"sleep 700ms", "leave\nsleep 1s"}[i%2]}))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	did := make(map[string]int)
	var hands sync.WaitGroup
	begin, kill := time.Now(), time.Now()
	b.awaitLong("every task to be done", func() bool {
		if found := b.twice(); found != "" && b.twice() == found { // one of them may have died while it was looked at
			t.Fatalf("live processes of two attempts: %s\n%s", found, b.left())
		}
		st, err := s.Stats(b.Context(), time.Now())
		b.must(err)
		if st.ByStatus[kanban.Done] == n {
			return true
		}
		b.operate(s)
		if time.Since(begin) > storm {
			return false
		}
		running, err := s.Tasks(b.Context(), kanban.Filter{Status: kanban.Running})
		b.must(err)
		if time.Since(kill) > 2*time.Second {
			kill = time.Now()
			for _, pid := range b.outside(dispatcher) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				did["kill -9 of the service"]++
			}
		}
		if len(running) == 0 {
			return false
		}
		id := running[rng.IntN(len(running))].ID
		switch rng.IntN(5) {
		case 0:
			did["reclaim by the command line"]++
			hands.Go(func() { b.inside(bin+"/hinit-kanban", "reclaim", id, "storm") })
		case 1:
			did["reclaim by Python"]++
			hands.Go(func() { b.inside(python, script, b.home+"/kanban.db", id) })
		case 2:
			did["block and unblock"]++
			_, err = s.Block(b.Context(), time.Now(), id, "storm", 0)
			b.must(err)
		case 3:
			for _, pid := range b.outside(func(_, environ string) bool { return strings.Contains(environ, "HERMES_KANBAN_TASK="+id) }) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			did["kill -9 of workers"]++
		}
		return false
	})
	hands.Wait()
	if why, err := os.ReadFile(filepath.Join(b.dir, "locks/violated")); err == nil {
		t.Errorf("a task had two workers: %s", why)
	}
	b.account(s, ids)
	b.await("the end of every worker", func() bool { return len(b.outside(workers)) == 0 })
	t.Logf("%d tasks: %v", n, did)
}
