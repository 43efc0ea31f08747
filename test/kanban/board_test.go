package kanban_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/kanban"
)

// board opens the container's board from outside.
func (b *boardContainer) board() *kanban.Store {
	b.Helper()
	env := func(name string) string {
		if name == "HERMES_HOME" {
			return b.dir + "/home"
		}
		return ""
	}
	boards := &kanban.Boards{Root: b.dir + "/home", Env: env}
	paths, err := boards.Paths("")
	b.check(err)
	s, err := kanban.Open(b.Context(), paths, kanban.Options{Env: env})
	b.check(err)
	return s
}

func (b *boardContainer) create(s *kanban.Store, n kanban.Task, parents ...string) string {
	b.Helper()
	id, err := s.Create(b.Context(), time.Now(), n, parents...)
	b.check(err)
	return id
}

// stories are the behaviours of the tasks. Each task is done at the second attempt at the latest,
// unless its worker is killed.
var stories = []kanban.Task{
	{Body: "sleep 20ms"},
	{Body: "once fail"},
	{Body: "sleep 50ms"},
	{Body: "once die"},
	{Body: "say hello"},
	{Body: "once sleep 60s", MaxRuntimeSeconds: new(int64(1))},
	{Body: "once rate-limit"},
	{Body: "leave"},
	{Body: "sleep 300ms"},
	{Body: "once vanish"},
}

// TestThreeProfilesCompleteTheTasksOfABoard runs tasks with links, failures and timeouts while it kills
// everything in turn. It then checks the board's report.
func TestThreeProfilesCompleteTheTasksOfABoard(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	b := newBoardContainer(t, "  max_in_progress: 8\n  max_in_progress_per_profile: 4\n  failure_limit: 5\n")
	s := b.board()
	defer func() { _ = s.Close() }()
	n := 100
	if *full {
		n = 300
	}
	profiles := []string{"default", "coder", "ops"}
	var ids []string
	for i := range n {
		task, parents := stories[i%len(stories)], []string(nil)
		task.Title, task.Assignee = fmt.Sprint("task ", i), profiles[i%len(profiles)]
		if i >= 7 && i%7 == 0 { // Task i depends on two earlier tasks if i is a multiple of 7.
			parents = []string{ids[i-7], ids[i-3]}
		}
		ids = append(ids, b.create(s, task, parents...))
	}
	k := &killer{boardContainer: b, rng: rand.New(rand.NewPCG(1, uint64(n)))}
	most, perProfile := 0, 0
	nextKill := time.Now()
	b.awaitLong("every task to be done", func() bool {
		st, err := s.Stats(b.Context(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, st.ByStatus[kanban.Running])
		for _, by := range st.ByAssignee {
			perProfile = max(perProfile, by[kanban.Running])
		}
		b.operate(s)
		if st.ByStatus[kanban.Done] == n {
			return true
		}
		if time.Now().After(nextKill) {
			k.next()
			nextKill = time.Now().Add(400 * time.Millisecond)
		}
		return false
	})
	if most > 8 || perProfile > 4 {
		t.Errorf("%d were running at a time, %d of one profile; the caps are 8 and 4", most, perProfile)
	}
	if why, err := os.ReadFile(filepath.Join(b.dir, "locks/violated")); err == nil {
		t.Errorf("a task had two workers: %s", why)
	}
	b.checkEvents(s, ids)
	t.Logf("%d tasks; killed in turn: %v", n, k.counts)
}

func (b *boardContainer) awaitLong(what string, so func() bool) {
	b.Helper()
	deadline := time.Now().Add(2*patience + *span)
	if *full {
		deadline = deadline.Add(10 * patience)
	}
	for ; !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited too long for %s; %s", what, b.unfinishedTasks())
		}
	}
}

func (b *boardContainer) unfinishedTasks() string {
	s := b.board()
	defer s.Close()
	var out strings.Builder
	tasks, err := s.Tasks(b.Context(), kanban.TaskFilter{})
	st, failed := s.Stats(b.Context(), time.Now())
	fmt.Fprintf(&out, "%v %v %v", st.ByStatus, err, failed)
	for _, t := range tasks {
		if t.Status != kanban.Done {
			events, _ := s.Events(b.Context(), t.ID, 0)
			fmt.Fprintf(&out, "\n%s %s %s pid %d lock %s: %q", t.ID, t.Status, t.Assignee, t.WorkerPID, t.ClaimLock, t.Body)
			for _, e := range events[max(0, len(events)-6):] {
				fmt.Fprintf(&out, "\n    %s %s", e.Kind, e.Payload)
			}
		}
	}
	return out.String()
}

// operate acts as the operator: it retries blocked and guarded tasks.
func (b *boardContainer) operate(s *kanban.Store) {
	blocked, err := s.Tasks(b.Context(), kanban.TaskFilter{Status: kanban.Blocked})
	if err != nil {
		return
	}
	for _, t := range blocked {
		_, _ = s.Unblock(b.Context(), time.Now(), t.ID) // After an error, the next call tries again.
	}
	ready, err := s.Tasks(b.Context(), kanban.TaskFilter{Status: kanban.Ready})
	if err != nil {
		return
	}
	for _, t := range ready {
		if t.LastFailureError == "" {
			continue
		}
		events, err := s.Events(b.Context(), t.ID, 0)
		// A guarded task does not run.
		if n := len(events); err == nil && n > 0 && events[n-1].Kind == "respawn_guarded" {
			_, _ = s.Block(b.Context(), time.Now(), t.ID, "look at it", 0)
		}
	}
}

// checkEvents compares the board's own report with the events.
func (b *boardContainer) checkEvents(s *kanban.Store, ids []string) {
	b.Helper()
	outcomes := make(map[string]int)
	for _, id := range ids {
		runs, err := s.Runs(b.Context(), id)
		b.check(err)
		events, err := s.Events(b.Context(), id, 0)
		b.check(err)
		claimed, completed := 0, 0
		claims := make(map[int64]bool)
		for _, e := range events {
			switch e.Kind {
			case "claimed":
				claimed++
				claims[e.RunID] = true
			case "completed":
				completed++
			}
		}
		attempts := slices.DeleteFunc(slices.Clone(runs), func(r kanban.Run) bool { // The operator's block of an unclaimed task adds a run that is no attempt.
			return r.Outcome == "blocked" && !claims[r.ID]
		})
		if claimed != len(attempts) || completed != 1 {
			b.Errorf("%s has %d runs, %d claims and %d completions", id, len(attempts), claimed, completed)
		}
		for i, r := range runs {
			outcomes[r.Outcome]++
			if r.EndedAt == 0 || r.Outcome == "" {
				b.Errorf("%s: run %d is open: %+v", id, r.ID, r)
			}
			if last := i == len(runs)-1; last != (r.Outcome == "completed") {
				b.Errorf("%s: run %d of %d is %s", id, i+1, len(runs), r.Outcome)
			}
			if i > 0 && r.StartedAt < runs[i-1].EndedAt {
				b.Errorf("%s: run %d began at %d, before the one before it ended at %d", id, r.ID, r.StartedAt, runs[i-1].EndedAt)
			}
		}
		t, err := s.Task(b.Context(), id)
		b.check(err)
		if t.ClaimLock != "" || t.CurrentRunID != 0 || t.WorkerPID != 0 {
			b.Errorf("%s is done and still claimed: %+v", id, t)
		}
	}
	backup := filepath.Join(b.dir, "backup.db")
	if err := s.Backup(b.Context(), backup); err != nil {
		b.Errorf("the board is not sound: %v", err)
	}
	b.Logf("outcomes of the runs: %v", outcomes)
}

// killer kills one process after the other.
type killer struct {
	*boardContainer
	rng    *rand.Rand
	round  int
	counts map[string]int
}

func (k *killer) next() {
	if k.counts == nil {
		k.counts = make(map[string]int)
	}
	k.round++
	switch k.round % 5 {
	case 1:
		k.signal("the dispatcher", k.outside(isDispatcher), syscall.SIGKILL)
	case 2:
		k.signal("a worker", k.outside(isWorker), syscall.SIGKILL)
	case 3:
		if k.counts["the container"] == 0 || *full && k.counts["the container"] < 5 {
			k.kill()
			k.boot()
			k.counts["the container"]++
		}
	case 4:
		if _, err := k.client.Reexec(k.Context(), ""); err == nil {
			k.counts["PID 1, re-executed"]++
		}
	case 0:
		k.signal("a worker, by TERM", k.outside(isWorker), syscall.SIGTERM)
	}
}

func (k *killer) signal(what string, pids []int, sig syscall.Signal) {
	if len(pids) > 0 && syscall.Kill(pids[k.rng.IntN(len(pids))], sig) == nil {
		k.counts[what]++
	}
}
