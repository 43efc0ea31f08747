package kanban_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/client"
	"hinit/kanban"
)

// findOneProcess returns the single matching process.
func (b *boardContainer) findOneProcess(what string, match func(cmdline, environ string) bool) (pid int) {
	b.Helper()
	b.await(what, func() bool {
		pids := b.outside(match)
		if len(pids) == 1 {
			pid = pids[0]
		}
		return len(pids) == 1
	})
	return pid
}

// TestWorkersOutliveTheirDispatcher checks that a worker survives the death of the dispatcher and a
// re-execution of PID 1, in the same attempt.
func TestWorkersOutliveTheirDispatcher(t *testing.T) {
	t.Parallel()
	b := newBoardContainer(t, "  failure_limit: 5\n")
	s := b.board()
	defer s.Close()
	release := filepath.Join(b.dir, "home", "release")
	id := b.create(s, kanban.Task{Title: "long", Assignee: "coder", Body: "await " + release + "\nfail"})
	worker := b.findOneProcess("a worker", isWorker)
	for range 2 {
		old := b.findOneProcess("the dispatcher", isDispatcher)
		b.check(syscall.Kill(old, syscall.SIGKILL))
		b.await("another dispatcher", func() bool {
			pids := b.outside(isDispatcher)
			return len(pids) == 1 && pids[0] != old
		})
		b.await("a re-execution", func() bool { // hinit refuses a re-execution while the previous one is under way.
			_, err := b.client.Reexec(b.Context(), "")
			return err == nil
		})
	}
	if now := b.outside(isWorker); !slices.Equal(now, []int{worker}) {
		t.Errorf("the workers are %v, not %d alone", now, worker)
	}
	b.check(os.WriteFile(release, nil, 0o644))
	b.await("the end of the first attempt", func() bool {
		runs, err := s.Runs(b.Context(), id)
		return err == nil && len(runs) > 0 && runs[0].EndedAt != 0
	})
	runs, err := s.Runs(b.Context(), id)
	b.check(err)
	if runs[0].Outcome != "crashed" || !strings.Contains(runs[0].Error, "exited with code 1") {
		t.Errorf("the first attempt ended as %+v", runs[0])
	}
	list, err := b.client.Runs(b.Context())
	b.check(err)
	if i := slices.IndexFunc(list, func(r client.Run) bool { return strings.Contains(r.Tag, id) }); i < 0 || list[i].End == nil || list[i].End.Code == nil || *list[i].End.Code != 1 {
		t.Errorf("PID 1 remembers %+v", list)
	}
}

// TestTheEndOfTheContainerCountsNoFailure checks that the end of the container does not count as a
// failure of a task.
func TestTheEndOfTheContainerCountsNoFailure(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	b := newBoardContainer(t, "")
	s := b.board()
	id := b.create(s, kanban.Task{Title: "long", Assignee: "ops", Body: "sleep 60s"})
	b.findOneProcess("a worker", isWorker)
	b.await("its pid to be written down", func() bool {
		t, err := s.Task(b.Context(), id)
		return err == nil && t.WorkerPID != 0
	})
	_ = s.Close()
	b.kill()
	b.boot()
	s = b.board()
	defer s.Close()
	b.await("another attempt", func() bool {
		runs, err := s.Runs(b.Context(), id)
		return err == nil && len(runs) == 2
	})
	runs, err := s.Runs(b.Context(), id)
	b.check(err)
	task, err := s.Task(b.Context(), id)
	b.check(err)
	if runs[0].Outcome != "reclaimed" || task.ConsecutiveFailures != 0 {
		t.Errorf("the first attempt is %s; %d failures count", runs[0].Outcome, task.ConsecutiveFailures)
	}
}

// TestReclaimEndsTheWholeTree checks that all processes of a worker end with it, even a daemon that
// ignores SIGTERM (contract 22.1, 28.9).
func TestReclaimEndsTheWholeTree(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	b := newBoardContainer(t, "")
	s := b.board()
	defer s.Close()
	id := b.create(s, kanban.Task{Title: "x", Assignee: "coder", Body: "leave\nsleep 60s"})
	ofTask := func(_, environ string) bool { return strings.Contains(environ, "HERMES_KANBAN_TASK="+id) }
	b.await("the worker and its daemon", func() bool { return len(b.outside(ofTask)) >= 2 })
	_, err := s.Block(b.Context(), time.Now(), id, "stop it", 0) // Block the task, so that it does not start again.
	b.check(err)
	list, err := b.client.Runs(b.Context())
	b.check(err)
	for _, r := range list {
		if strings.Contains(r.Tag, id) {
			_, err := b.client.StopRun(b.Context(), r.ID)
			b.check(err)
			r, err = b.client.Run(b.Context(), r.ID, patience)
			b.check(err)
			if r.End == nil || r.StopReason != client.RunStopped || r.End.Code == nil || *r.End.Code != 0 {
				t.Errorf("the run is %+v, end %+v", r, r.End)
			}
		}
	}
	if left := b.outside(ofTask); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}

// TestBoardInStatusAndEvents checks that hinit status shows the counts of the board, and that the
// events show each worker. A board with many tasks must not be reported as a problem.
func TestBoardInStatusAndEvents(t *testing.T) {
	t.Parallel() // this test mostly waits, so it runs beside others
	b := newBoardContainer(t, "  max_in_progress_per_profile: 1\n")
	s := b.board()
	defer s.Close()
	for range 3 {
		b.create(s, kanban.Task{Title: "x", Assignee: "coder", Body: "sleep 3s"})
	}
	b.await("the note", func() bool {
		v, err := b.client.Service(b.Context(), "kanban")
		return err == nil && v.Problem == "" && strings.Contains(v.StatusText, "2 ready, 1 running (coder 1), 0 blocked, 2 capped")
	})
	table, _, err := b.client.StatusTable(b.Context(), client.TableFormat{}, "kanban")
	b.check(err)
	if !strings.Contains(string(table), "1 running (coder 1)") || strings.Contains(string(table), "ailing") || strings.Contains(string(table), "\nrun/") {
		t.Errorf("the table is\n%s", table)
	}
	found := false
	b.check(b.client.Events(b.Context(), client.EventOptions{}, func(e client.Event) error {
		found = found || strings.HasPrefix(e.Service, "run/default.") && e.ToState == "up"
		return nil
	}))
	if !found {
		t.Error("no event tells of a worker")
	}
}
