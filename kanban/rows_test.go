package kanban

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"hinit/internal/procstat"
)

// TestARowWithoutAnIDStoppedTheBoard checks that the dispatcher skips a task with a null ID.
func TestARowWithoutAnIDStoppedTheBoard(t *testing.T) {
	t.Parallel()
	for _, status := range Statuses {
		b := newBoard(t)
		b.dispatcher.Backoff = 60e9
		id := b.createReady("alpha")
		b.execSQL("INSERT INTO tasks (id, title, status, assignee, created_at, priority) VALUES (NULL, 'x', ?, 'alpha', 1, 9)", status)
		b.execSQL("INSERT INTO task_links (parent_id, child_id) VALUES ('none', 'none')")
		if r, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err != nil || len(spawnedIDs(r)) != 1 || spawnedIDs(r)[0] != id {
			t.Errorf("%s: %v, %v", status, spawnedIDs(r), err)
		}
		if _, err := b.dispatcher.NextPassTime(t.Context(), b.now); err != nil {
			t.Errorf("%s: the next pass: %v", status, err)
		}
		for _, f := range []func() error{
			func() error { _, err := b.Stats(t.Context(), b.now); return err },
			func() error { _, err := b.Tasks(t.Context(), TaskFilter{}); return err },
		} {
			if err := f(); err != nil {
				t.Errorf("%s: %v", status, err)
			}
		}
	}
}

// TestTheSameRequestMadeTwoTasks checks that a repeated request with the same idempotency key makes
// no second task.
func TestTheSameRequestMadeTwoTasks(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			s, err := openStoreAt(t, b.paths.DB)
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			id, err := s.Create(t.Context(), b.now, Task{Title: "x", IdempotencyKey: "once"})
			if err := errors.Join(err, s.Close()); err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("%s besides %s", id, first)
		}
	}
}

// TestADamagedBoardFilledTheVolumeWithCopies checks that at most four copies of a damaged board are
// kept.
func TestADamagedBoardFilledTheVolumeWithCopies(t *testing.T) {
	const corruptCopies = 4
	path := filepath.Join(t.TempDir(), "kanban.db")
	makeLargeBoard(t, path)
	for fill := range byte(2 * corruptCopies) {
		corruptPage(t, path, 0xf0+fill)
		clearCheckedFiles()
		_, err := openStoreAt(t, path)
		if bad := (*CorruptError)(nil); !errors.As(err, &bad) || (bad.Backup == "") != (fill >= corruptCopies) {
			t.Errorf("after damage %d: %v", fill+1, err)
		}
	}
	if copies, err := filepath.Glob(path + ".corrupt.*.bak"); err != nil || len(copies) != corruptCopies {
		t.Errorf("%d copies, %v", len(copies), err)
	}
}

// TestARowKeptTheDispatcherBusy checks that an impossible deadline in a row does not cause a pass
// every second.
func TestARowKeptTheDispatcherBusy(t *testing.T) {
	t.Parallel()
	for _, set := range []string{
		"id = NULL", "claim_lock = NULL", "claim_expires = 9223372036854775807", "max_runtime_seconds = 9223372036854775807",
	} {
		b := newBoard(t)
		b.runner.reportsStarted = true
		b.createReady("alpha")
		b.tick()
		b.execSQL("UPDATE tasks SET " + set)
		for range 3 {
			b.advance(20 * time.Minute)
			b.tick()
		}
		if next, err := b.dispatcher.NextPassTime(t.Context(), b.now); err != nil || !next.IsZero() && next.Sub(b.now) < DefaultPassInterval {
			t.Errorf("%s: the next pass is in %s; %v", set, next.Sub(b.now), err)
		}
	}
}

// TestAWorkerWasEndedBecauseTheClockWasSetForward checks that a new worker is not ended as too slow
// after the clock was set forward.
func TestAWorkerWasEndedBecauseTheClockWasSetForward(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.now = time.Now()
	b.dispatcher.Config.StaleTimeout = 4 * time.Hour
	b.runner.reportsStarted = true
	me, err := procstat.Read(os.Getpid())
	must(t, err)
	began := procstat.StartedAt(me.Start)
	id := b.create(Task{Assignee: "alpha", MaxRuntimeSeconds: new(int64(3600))})
	b.tick()
	run := b.task(id).CurrentRunID
	b.runner.reportsByRun[run] = WorkerReport{Liveness: Alive, Worker: Worker{PID: b.runner.pid(id), StartTime: me.Start}}
	b.execSQL("UPDATE task_runs SET started_at = started_at - 86400, claim_expires = claim_expires - 86400")
	b.execSQL("UPDATE tasks SET started_at = started_at - 86400, claim_expires = claim_expires - 86400")
	b.now = time.Now()
	if r := b.tick(); len(r.TimedOut)+len(r.Stale)+r.Reclaimed > 0 || b.task(id).CurrentRunID != run {
		t.Errorf("%+v", r)
	}
	b.now = began.Add(time.Hour + 2*time.Second)
	checkEqual(t, "timed out", b.tick().TimedOut, id)
}

// TestAClockThatWasSetBackDidNotProlongTheRuntime checks that a worker with a claim in the future
// is still ended at its maximum runtime.
func TestAClockThatWasSetBackDidNotProlongTheRuntime(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	b.runner.reportsStarted = true
	me, err := procstat.Read(os.Getpid())
	must(t, err)
	id := b.create(Task{Assignee: "alpha", MaxRuntimeSeconds: new(int64(3600))})
	b.tick()
	b.runner.reportsByRun[b.task(id).CurrentRunID] = WorkerReport{Liveness: Alive, Worker: Worker{PID: b.runner.pid(id), StartTime: me.Start}}
	began := procstat.StartedAt(me.Start)
	b.execSQL("UPDATE task_runs SET started_at = ?", began.Add(24*time.Hour).Unix())
	b.now = began.Add(time.Hour - time.Minute)
	checkEqual(t, "too early", b.tick().TimedOut)
	b.now = began.Add(time.Hour + 2*time.Second)
	checkEqual(t, "timed out", b.tick().TimedOut, id)
}
