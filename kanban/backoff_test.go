package kanban

import (
	"errors"
	"testing"
	"time"
)

// TestBackoff checks that the pause between two attempts grows, differs between tasks, and depends
// on the cause of the failure.
func TestBackoff(t *testing.T) {
	t.Parallel()
	served := func(t *testing.T) *testBoard {
		b := newBoard(t)
		b.dispatcher.Backoff, b.dispatcher.Config.FailureLimit = time.Minute, 5
		return b
	}
	// waits returns how long the dispatcher holds a task back, from its successive deadlines.
	waits := func(b *testBoard, id string) time.Duration {
		b.t.Helper()
		begin := b.now
		for range 100 {
			if r := b.tick(); len(r.Spawned) > 0 {
				return b.now.Sub(begin)
			}
			next, err := b.dispatcher.NextPassTime(b.t.Context(), b.now)
			if must(b.t, err); next.IsZero() || next.Sub(b.now) > time.Minute {
				b.t.Fatalf("%s waits, and the next look is at %v, now %v", id, next, b.now)
			}
			b.now = next
		}
		b.t.Fatalf("%s is never started", id)
		return 0
	}
	t.Run("a missing program", func(t *testing.T) { // Without a pause, five failures in 19 ms would block the task.
		b := served(t)
		id := b.createReady("alpha")
		b.runner.startError = errors.New("no such file")
		for _, least := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
			b.tick()
			checkEqual(t, "held back", b.tick().RespawnGuarded, GuardedTask{id, guardBackoff})
			b.runner.startError = nil
			if got := waits(b, id); got < least || got > least*6/5 {
				t.Errorf("waited %v, not %v and a fifth more at most", got, least)
			}
			b.execSQL("DELETE FROM task_runs WHERE id = ?", b.task(id).CurrentRunID)
			b.execSQL("UPDATE tasks SET status = 'ready', claim_lock = NULL, current_run_id = NULL, worker_pid = NULL")
			b.runner.startError = errors.New("no such file")
		}
		if b.countEvents(id, "respawn_guarded") != 0 {
			t.Error("the wait is an event")
		}
	})
	t.Run("tasks that failed together are apart", func(t *testing.T) {
		b := served(t)
		b.runner.startError = errors.New("no")
		seen := make(map[int64]bool)
		for range 30 {
			seen[(&boardPass{Dispatcher: b.dispatcher}).retryTime(endedAttempt{Task: newID(), Run: 1, Outcome: "crashed", Failures: 1})] = true
		}
		if len(seen) < 4 {
			t.Errorf("%v", seen)
		}
	})
	t.Run("what somebody asked for is tried at once", func(t *testing.T) {
		b := served(t)
		id := b.createReady("alpha")
		b.tick()
		b.reportExit(id, Exit{Signal: 15, Terminated: true, DuringShutdown: true, EndedAt: b.now})
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	t.Run("a pass by hand does not wait", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		b.reportExit(id, Exit{Code: 1})
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
}

// TestTheHostCannotStartWorkers checks that a host that can't start workers does not cause failures
// of the task.
func TestTheHostCannotStartWorkers(t *testing.T) {
	t.Parallel()
	t.Run("it says so", func(t *testing.T) {
		b := newBoard(t)
		ids := []string{b.createReady("alpha"), b.createReady("alpha")}
		b.runner.startError = &HostError{Err: errors.New("256 runs are alive")}
		_, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{})
		if !errors.As(err, new(*HostError)) {
			t.Errorf("%v", err)
		}
		for _, id := range ids {
			if task := b.task(id); task.Status != Ready || task.ConsecutiveFailures != 0 || task.LastFailureError != "" {
				t.Errorf("%+v", task)
			}
		}
		if b.lastRun(ids[0]).Outcome != "reclaimed" {
			t.Errorf("%+v", b.lastRun(ids[0]))
		}
		b.runner.startError = nil
		checkEqual(t, "spawned", spawnedIDs(b.tick()), ids...)
		b.checkIntegrity()
	})
	// PID 1 starts the requested worker 48 seconds late, when the next attempt already has a worker.
	// Only one may run.
	t.Run("it does not answer", func(t *testing.T) {
		for _, started := range []bool{false, true} {
			b := newBoard(t)
			id := b.createReady("alpha")
			b.runner.startError = &HostError{Err: errors.New("no answer"), MayHaveStarted: true}
			if _, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err == nil {
				t.Error("the pass went well")
			}
			run, asked := b.task(id).CurrentRunID, len(b.runner.jobs)
			b.runner.startError = nil
			b.runner.reportsByRun[run] = WorkerReport{Liveness: NeverStarted}
			if started {
				b.runner.reportsByRun[run] = WorkerReport{Liveness: Alive, Worker: Worker{PID: 77}}
			}
			b.advance(time.Hour)
			b.tick()
			task := b.task(id)
			if task.Status != Running || task.CurrentRunID != run || task.WorkerPID == 0 || started != (task.WorkerPID == 77) || task.ConsecutiveFailures != 0 {
				t.Errorf("started %v; a second worker may meet the first: %+v", started, task)
			}
			if n := len(b.runner.jobs) - asked; (n == 0) != started {
				t.Errorf("started %v, and asked for %d more", started, n)
			}
			b.checkIntegrity()
		}
	})
	// Only one worker may run if the task is reclaimed by hand.
	t.Run("it does not answer, and the task is reclaimed", func(t *testing.T) {
		for _, within := range []bool{false, true} {
			b := newBoard(t)
			b.runner.reportsStarted, b.runner.lateStarts = true, make(map[int64]Worker)
			id := b.createReady("alpha")
			b.runner.startError = &HostError{Err: errors.New("no answer"), MayHaveStarted: true}
			if _, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err == nil {
				t.Error("the pass went well")
			}
			first := b.task(id).CurrentRunID
			b.runner.reportsByRun[first] = WorkerReport{Liveness: NeverStarted}
			reclaim := func() {
				b.execSQL("UPDATE tasks SET status = 'ready', claim_lock = NULL, claim_expires = NULL, current_run_id = NULL")
				b.execSQL("UPDATE task_runs SET status = 'reclaimed', outcome = 'reclaimed', ended_at = started_at")
			}
			if within {
				b.runner.onWorkerStates = func() {
					b.runner.onWorkerStates = nil
					reclaim()
				}
			} else {
				reclaim()
				_, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{})
				must(t, err)
				if b.checkStatus(id, Ready); b.lastRun(id).ID != first {
					t.Error("another attempt began before the start was withdrawn")
				}
			}
			b.runner.startError = nil
			for range 2 {
				b.tick()
			}
			if b.task(id).CurrentRunID == first || b.task(id).WorkerPID == 0 {
				t.Errorf("there is no other attempt: %+v", b.task(id))
			}
			if b.runner.reportsByRun[first].Liveness == Alive {
				t.Errorf("within the pass %v: two workers are on one task", within)
			}
			b.checkIntegrity()
		}
	})
}
