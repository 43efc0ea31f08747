package kanban

import (
	"testing"
	"time"
)

// TestLeavingWorkers checks that a worker gets a minute to end after its attempt. Until then, it
// counts against the limits and is shown.
func TestLeavingWorkers(t *testing.T) {
	t.Parallel()
	for how, over := range map[string]func(b *testBoard, id string) (bool, error){
		"complete": func(b *testBoard, id string) (bool, error) {
			return b.Complete(b.t.Context(), b.now, id, Completion{Summary: "done"})
		},
		"block":   func(b *testBoard, id string) (bool, error) { return b.Block(b.t.Context(), b.now, id, "why", 0) },
		"archive": func(b *testBoard, id string) (bool, error) { return b.Archive(b.t.Context(), b.now, id) },
		"delete": func(b *testBoard, id string) (bool, error) {
			_, err := b.Archive(b.t.Context(), b.now, id)
			must(b.t, err)
			return b.DeleteArchived(b.t.Context(), id)
		},
	} {
		for _, knows := range []bool{true, false} {
			t.Run(how, func(t *testing.T) {
				b := newBoard(t)
				b.runner.reportsStarted = knows
				b.dispatcher.Config.MaxInProgress = new(1)
				id := b.createReady("alpha")
				b.tick()
				run, pid := b.task(id).CurrentRunID, b.task(id).WorkerPID
				other := b.createReady("alpha")
				ok, err := over(b, id)
				if must(t, err); !ok {
					t.Fatal("nothing happened")
				}
				if how != "delete" { // A deleted task has no attempt, so the time of its end is unknown.
					if r := b.tick(); r.DepartedAlive != 1 || len(r.Spawned) != 0 {
						t.Errorf("its process counts no more: %+v", r)
					}
					list, err := b.dispatcher.DepartedWorkers(t.Context(), b.now)
					if must(t, err); len(list) != 1 || list[0].PID != pid || list[0].Run != run || list[0].EndDeadline.Unix() != b.now.Unix()+60 {
						t.Errorf("%+v", list)
					}
					next, err := b.dispatcher.NextPassTime(t.Context(), b.now)
					if must(t, err); next.Unix() != b.now.Unix()+60 {
						t.Errorf("next at %v, now %v", next, b.now)
					}
				}
				b.advance(time.Minute)
				checkEqual(t, "spawned", spawnedIDs(b.tick()), other)
				if knows {
					checkEqual(t, "ended", b.runner.ended, run)
				} else {
					checkEqual(t, "signals", b.procs.signals, pid)
				}
			})
		}
	}
	// Two workers must not share a workspace after block and unblock.
	t.Run("another attempt waits for the end of the last one", func(t *testing.T) {
		b := newBoard(t)
		b.runner.reportsStarted = true
		id := b.createReady("alpha")
		b.tick()
		run := b.task(id).CurrentRunID
		b.runner.ignoresEnd = true
		_, err := b.Block(t.Context(), b.now, id, "why", 0)
		must(t, err)
		_, err = b.Unblock(t.Context(), b.now, id)
		must(t, err)
		checkEqual(t, "spawned", spawnedIDs(b.tick()))
		checkEqual(t, "asked to end", b.runner.ended, run)
		b.runner.ignoresEnd = false
		checkEqual(t, "asked again", spawnedIDs(b.tick()))
		b.advance(survivorRetrySeconds * time.Second)
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	// A worker whose attempt ends during a pass must count against the limits.
	t.Run("its attempt ends while the pass looks", func(t *testing.T) {
		b := newBoard(t)
		b.runner.reportsStarted = true
		b.dispatcher.Config.MaxInProgress = new(1)
		id, other := b.createReady("alpha"), b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		b.runner.onWorkerStates = func() { _, _ = b.Block(t.Context(), b.now, id, "why", 0) }
		run := b.task(id).CurrentRunID
		checkEqual(t, "spawned beside it", spawnedIDs(b.tick()))
		b.runner.reportsByRun[run] = WorkerReport{Liveness: Ended, Exit: Exit{Known: true}}
		checkEqual(t, "spawned", spawnedIDs(b.tick()), other)
	})
	t.Run("what another program's worker has left is ended", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		b.reportExit(id, Exit{Code: 1})
		b.procs.setProcess(55, true, 0)
		b.runner.leftovers = map[string][]int{id: {55}, "t_other": {56}}
		b.procs.survives[55] = true
		checkEqual(t, "spawned", spawnedIDs(b.tick()))
		b.procs.survives[55] = false
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		checkEqual(t, "signals", b.procs.signals, 55, 55)
	})
}
