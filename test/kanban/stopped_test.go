package kanban_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"hinit/kanban"
	"hinit/kanban/cli/runner"
)

// sockets returns the sockets that a process has open.
func sockets(pid int) (names []string) {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil && strings.HasPrefix(name, "socket:") {
			names = append(names, name)
		}
	}
	return names
}

// TestReclaimWhilePID1StandsStill checks that no worker of an old attempt starts if the task was
// reclaimed while PID 1 was stopped.
func TestReclaimWhilePID1StandsStill(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	b := newBoardContainer(t, "")
	s := b.board()
	defer s.Close()
	first := b.create(s, kanban.Task{Title: "before", Assignee: "coder"}) // This task makes the dispatcher connect to PID 1.
	b.await("a first task to be done", func() bool {
		task, err := s.Task(b.Context(), first)
		return err == nil && task.Status == kanban.Done
	})
	pid := b.findOneProcess("the dispatcher", isDispatcher)
	before := sockets(pid)
	b.check(b.cmd.Process.Signal(syscall.SIGSTOP))
	t.Cleanup(func() { _ = b.cmd.Process.Signal(syscall.SIGCONT) }) // The signal fails if PID 1 has ended.
	id := b.create(s, kanban.Task{Title: "x", Assignee: "coder", Body: "sleep 3s"})
	var asks []string
	b.await("the dispatcher to ask for a worker", func() bool {
		task, err := s.Task(b.Context(), id)
		asks = sockets(pid)
		return err == nil && task.Status == kanban.Running
	})
	b.await("it to give up", func() bool { // The dispatcher may use an old or a new connection.
		now := sockets(pid)
		for _, name := range now {
			if !slices.Contains(before, name) && !slices.Contains(asks, name) {
				asks = append(asks, name)
			}
		}
		return slices.ContainsFunc(asks, func(name string) bool { return !slices.Contains(now, name) })
	})
	if out := b.inside(bin+"/hinit-kanban", "reclaim", "--local", id); !strings.Contains(out, "Reclaimed") {
		t.Fatal(out)
	}
	b.check(b.cmd.Process.Signal(syscall.SIGCONT))
	b.await("the task to be done", func() bool {
		_, found := b.liveAttempts()
		if _, twice := b.liveAttempts(); found != "" && twice == found { // The process may have ended during the search.
			t.Fatalf("live processes of two attempts: %s\n%s", found, b.unfinishedTasks())
		}
		task, err := s.Task(b.Context(), id)
		return err == nil && task.Status == kanban.Done
	})
	runs, err := s.Runs(b.Context(), id)
	b.check(err)
	var outcomes []string
	for _, r := range runs {
		outcomes = append(outcomes, r.Outcome)
	}
	if want := []string{"reclaimed", "completed"}; !slices.Equal(outcomes, want) {
		t.Errorf("the attempts ended as %q, not %q", outcomes, want)
	}
	b.await("the end of every worker", func() bool { return len(b.outside(isWorker)) == 0 })
}

// TestAWithdrawnAttemptGetsNoWorker checks that PID 1 starts no worker for a withdrawn attempt.
func TestAWithdrawnAttemptGetsNoWorker(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	b := newBoardContainer(t, "")
	r, err := runner.NewPID1Runner(b.Context(), b.client)
	b.check(err)
	defer r.Close()
	job := kanban.WorkerJob{Profile: "coder", RunRef: kanban.RunRef{DB: b.home + "/kanban.db", Board: "default", Task: "t_00000000", Run: 7}}
	job.EnvVars = map[string]string{"HERMES_KANBAN_TASK": job.Task}
	for range 2 {
		if s, err := r.Withdraw(b.Context(), job.RunRef); err != nil || s.Liveness != kanban.Ended {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	if w, err := r.Start(b.Context(), job); err == nil {
		t.Errorf("there is a worker: %+v", w)
	}
	job.Run++
	w, err := r.Start(b.Context(), job)
	b.check(err)
	if s, err := r.Withdraw(b.Context(), job.RunRef); err != nil || s.Worker != w {
		t.Errorf("the worker that had begun is %+v, not %+v: %v", s.Worker, w, err)
	}
}
