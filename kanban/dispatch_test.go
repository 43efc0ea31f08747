package kanban

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
)

// TestDispatcher checks the rows of the contract about the dispatcher, section 28.3.
func TestDispatcher(t *testing.T) {
	t.Parallel()
	t.Run("dry run does not claim", func(t *testing.T) {
		b := newBoard(t)
		x, y := b.createReady("alpha"), b.createReady("beta")
		checkEqual(t, "spawned", spawnedIDs(b.dryTick()), x, y)
		b.checkStatus(x, Ready)
		b.checkStatus(y, Ready)
		if len(b.runner.jobs) != 0 {
			t.Error("a worker was started")
		}
	})
	t.Run("skips unassigned and nonspawnable", func(t *testing.T) {
		b := newBoard(t)
		nobody, terminal := b.createReady(""), b.createReady("orion-cc")
		r := b.tick()
		checkEqual(t, "unassigned", r.SkippedUnassigned, nobody)
		checkEqual(t, "nonspawnable", r.SkippedNonspawnable, terminal)
		checkEqual(t, "spawned", spawnedIDs(r))
	})
	t.Run("promotes and spawns", func(t *testing.T) {
		b := newBoard(t)
		parent := b.createReady("alpha")
		child := b.create(Task{Assignee: "beta"}, parent)
		b.checkStatus(child, Todo)
		b.execSQL("UPDATE tasks SET status = 'done' WHERE id = ?", parent)
		r := b.tick()
		checkEqual(t, "spawned", spawnedIDs(r), child)
		if r.Promoted != 1 {
			t.Errorf("promoted %d", r.Promoted)
		}
		b.checkStatus(child, Running)
		checkEqual(t, "events", b.eventKinds(child), "created", "promoted", "claimed", "tip_scratch_workspace", "spawned")
	})
	t.Run("spawn failure releases claim", func(t *testing.T) {
		b := newBoard(t)
		b.runner.startError = errors.New("no such program")
		id := b.createReady("alpha")
		r := b.tick()
		if task := b.task(id); task.Status != Ready || task.ClaimLock != "" || task.CurrentRunID != 0 {
			t.Errorf("%+v", task)
		}
		checkEqual(t, "refused", r.FailedSpawns, FailedSpawn{id, "no such program"})
		b.checkIntegrity()
	})
	t.Run("priority, then age", func(t *testing.T) {
		b := newBoard(t)
		old, young := b.createReady("alpha"), b.createReady("alpha")
		urgent := b.create(Task{Assignee: "alpha", Priority: 5})
		checkEqual(t, "spawned", spawnedIDs(b.dryTick()), urgent, old, young)
	})
	t.Run("max_spawn counts running and fills the rest", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn = new(2)
		b.claimForPID(b.createReady("alpha"), 71, true)
		older, younger := b.createReady("alpha"), b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), older)
		checkEqual(t, "spawned", spawnedIDs(b.tick()))
		b.checkStatus(younger, Ready)
	})
	t.Run("max_in_progress", func(t *testing.T) {
		for limit, want := range map[int]int{1: 0, 3: 2, 0: 4} {
			b := newBoard(t)
			b.dispatcher.Config.MaxInProgress = new(limit)
			b.claimForPID(b.createReady("alpha"), 71, true)
			for range 4 {
				b.createReady("alpha")
			}
			if r := b.tick(); len(r.Spawned) != want {
				t.Errorf("limit %d: %d spawned, not %d", limit, len(r.Spawned), want)
			}
		}
	})
	t.Run("both caps: the lower one counts once", func(t *testing.T) { // The agent's own dispatcher differs: it counts running tasks twice.
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn, b.dispatcher.Config.MaxInProgress = new(10), new(5)
		for pid := range 3 {
			b.claimForPID(b.createReady("alpha"), 71+pid, true)
		}
		for range 4 {
			b.createReady("alpha")
		}
		if r := b.tick(); len(r.Spawned) != 2 {
			t.Errorf("%d spawned, not 2", len(r.Spawned))
		}
	})
	t.Run("a dry run counts what it would spawn", func(t *testing.T) { // The agent's own dispatcher differs: its dry run does not count these tasks.
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn = new(1)
		first := b.createReady("alpha")
		b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.dryTick()), first)
	})
	t.Run("reclaims before spawning", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claim(id)
		b.advance(DefaultClaimTTL + time.Second)
		if r := b.dryTick(); r.Reclaimed != 1 {
			t.Errorf("reclaimed %d in a dry run", r.Reclaimed)
		}
		b.checkStatus(id, Ready)
	})
	t.Run("tick lock", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		lock, held, err := TryLock(b.paths.TickLock())
		if must(t, err); !held {
			t.Fatal("not held")
		}
		if _, second, _ := TryLock(b.paths.TickLock()); second {
			t.Error("a second holder")
		}
		before := dumpTables(t, b.Store, "tasks", "task_events")
		if r := b.tick(); !r.SkippedLocked || len(b.runner.jobs) > 0 || dumpTables(t, b.Store, "tasks", "task_events") != before {
			t.Errorf("%+v", r)
		}
		other := newBoard(t)
		if r := other.tick(); r.SkippedLocked {
			t.Error("the lock of one board holds another")
		}
		lock.Release()
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	t.Run("a lock file that cannot be opened", func(t *testing.T) {
		b := newBoard(t)
		must(t, os.Mkdir(b.paths.TickLock(), 0o755))
		id := b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	t.Run("no pid", func(t *testing.T) {
		b := newBoard(t)
		b.runner.noPID = true
		id := b.createReady("alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		b.advance(10 * time.Minute)
		b.tick()
		b.checkStatus(id, Running) // The worker has no pid, so only the expiry of its claim ends the attempt.
		b.advance(10 * time.Minute)
		if r := b.tick(); r.Reclaimed != 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("stale integrated and disabled", func(t *testing.T) {
		for _, limit := range []time.Duration{0, 4 * time.Hour} {
			b := newBoard(t)
			b.dispatcher.Config.StaleTimeout = limit
			id := b.createReady("alpha")
			b.claimForPID(id, 71, true)
			b.execSQL("UPDATE tasks SET claim_expires = ? WHERE id = ?", b.now.Add(100*time.Hour).Unix(), id)
			b.advance(5 * time.Hour)
			b.dispatcher.Config.MaxSpawn = new(0)
			r := b.tick()
			if limit == 0 {
				b.checkStatus(id, Running)
				continue
			}
			checkEqual(t, "stale", r.Stale, id)
			b.checkStatus(id, Ready)
			b.checkIntegrity()
		}
	})
	t.Run("the runner does not answer", func(t *testing.T) {
		b := newBoard(t)
		id, other := b.createReady("alpha"), b.createReady("alpha")
		b.claimForPID(id, 71, false)
		b.runner.statesErr = errors.New("connection refused")
		b.advance(time.Hour)
		if _, err := b.dispatcher.Tick(t.Context(), b.now, TickOptions{}); err == nil {
			t.Error("no error")
		}
		b.checkStatus(id, Running) // The states are unknown, so no task changes.
		b.checkStatus(other, Ready)
	})
	t.Run("an unknown status", func(t *testing.T) {
		b := newBoard(t)
		odd, id := b.createReady("alpha"), b.createReady("alpha")
		b.execSQL("UPDATE tasks SET status = 'paused', claim_lock = 'host:1', claim_expires = 1 WHERE id = ?", odd)
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		b.checkStatus(odd, "paused")
		if task := b.task(odd); task.ClaimLock != "host:1" {
			t.Error("it was touched")
		}
	})
}

func TestReviewLane(t *testing.T) {
	t.Parallel()
	inReview := func(b *testBoard, who string) string {
		id := b.create(Task{Assignee: who, Skills: []string{"writing"}})
		b.execSQL("UPDATE tasks SET status = 'review' WHERE id = ?", id)
		return id
	}
	t.Run("dry run", func(t *testing.T) {
		b := newBoard(t)
		id := inReview(b, "alpha")
		checkEqual(t, "spawned", spawnedIDs(b.dryTick()), id)
		b.checkStatus(id, Review)
	})
	t.Run("skills", func(t *testing.T) {
		b := newBoard(t)
		id := inReview(b, "alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		checkEqual(t, "options", b.runner.jobs[0].Options, "--skills", "sdlc-review")
		if p := b.lastPayload(id, "claimed"); p["source_status"] != "review" {
			t.Errorf("payload %v", p)
		}
	})
	t.Run("unassigned and nonspawnable", func(t *testing.T) {
		b := newBoard(t)
		nobody, ghost := inReview(b, ""), inReview(b, "ghost")
		r := b.tick()
		checkEqual(t, "unassigned", r.SkippedUnassigned, nobody)
		checkEqual(t, "nonspawnable", r.SkippedNonspawnable, ghost)
	})
	t.Run("counts to max_spawn", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn = new(1)
		id := b.createReady("alpha")
		left := inReview(b, "alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
		b.checkStatus(left, Review)
	})
	t.Run("max_in_progress holds for review alone", func(t *testing.T) { // The agent's own dispatcher differs: it starts the reviewer in spite of the limit.
		b := newBoard(t)
		b.dispatcher.Config.MaxInProgress = new(1)
		b.claimForPID(b.createReady("alpha"), 71, true)
		left := inReview(b, "alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()))
		b.checkStatus(left, Review)
	})
	t.Run("no cap per profile", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.MaxInProgressPerProfile = new(1)
		x, y := inReview(b, "alpha"), inReview(b, "alpha")
		checkEqual(t, "spawned", spawnedIDs(b.tick()), x, y)
	})
	t.Run("claims only review", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		if _, won, err := b.Store.claim(t.Context(), b.now, id, claimOptions{from: Review}); won || err != nil {
			t.Errorf("%v %v", won, err)
		}
		review := inReview(b, "alpha")
		if _, won, err := b.Store.claim(t.Context(), b.now, review, claimOptions{from: Ready}); won || err != nil {
			t.Errorf("%v %v", won, err)
		}
	})
	// The task must return to review; the agent's own dispatcher sends it to ready.
	for _, how := range []string{"expired", "crashed", "spawn failed", "timed out", "manual"} {
		t.Run("goes back to review: "+how, func(t *testing.T) {
			b := newBoard(t)
			id := inReview(b, "alpha")
			b.dispatcher.Config.FailureLimit = 5
			if how == "spawn failed" {
				b.runner.startError = errors.New("no")
			}
			if how == "timed out" {
				b.execSQL("UPDATE tasks SET max_runtime_seconds = 60 WHERE id = ?", id)
			}
			b.tick()
			b.dispatcher.Config.MaxSpawn = new(0)
			switch how {
			case "expired":
				b.execSQL("UPDATE tasks SET worker_pid = NULL WHERE id = ?", id)
				must(t, os.Remove(b.paths.ledgerPath()))
				b.advance(DefaultClaimTTL + time.Second)
			case "crashed":
				b.reportExit(id, Exit{Code: 1})
			case "timed out":
				b.advance(61 * time.Second)
			case "manual":
				ok, err := b.dispatcher.Reclaim(t.Context(), b.now, id, "")
				if must(t, err); !ok {
					t.Error("not reclaimed")
				}
			}
			b.tick()
			b.checkStatus(id, Review)
			b.checkIntegrity()
		})
	}
	t.Run("the cooldown holds for review too", func(t *testing.T) {
		b := newBoard(t)
		id := inReview(b, "alpha")
		b.tick()
		b.reportExit(id, Exit{Code: 75})
		r := b.tick()
		checkEqual(t, "rate limited", r.RateLimited, id)
		checkEqual(t, "guarded", r.RespawnGuarded, GuardedTask{id, guardRateLimit})
		b.advance(DefaultRateLimitCooldown)
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
}

// TestWorkThatStandsStill checks that startable tasks that don't start count as stuck (contract, 26
// and 28.3).
func TestWorkThatStandsStill(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	want := func(what string, stuck int) {
		t.Helper()
		if r := b.tick(); r.DueNotStarted != stuck {
			t.Errorf("%s: %+v", what, r)
		}
	}
	want("empty", 0)
	b.createReady("ghost")
	b.createReady("")
	want("terminal lanes only", 0)
	b.runner.startError = errors.New("no such file")
	id := b.createReady("alpha")
	want("one ready", 1)
	b.execSQL("UPDATE tasks SET status = 'review' WHERE id = ?", id)
	want("one in review", 1)
	b.execSQL("UPDATE tasks SET claim_lock = 'x:1' WHERE id = ?", id)
	want("claimed", 0)
	b.runner.startError = nil
	b.createReady("alpha")
	want("started", 0)
}

func TestNext(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	next := func() int64 {
		t.Helper()
		at, err := b.dispatcher.NextPassTime(t.Context(), b.now)
		must(t, err)
		if at.IsZero() {
			return 0
		}
		return at.Unix() - b.now.Unix()
	}
	if n := next(); n != 0 {
		t.Errorf("an empty board: in %d s", n)
	}
	b.runner.reportsStarted = true
	id := b.create(Task{Assignee: "alpha", MaxRuntimeSeconds: new(int64(600))})
	b.tick()
	if n := next(); n != 600 {
		t.Errorf("maximum runtime: in %d s", n)
	}
	b.execSQL("UPDATE tasks SET max_runtime_seconds = NULL")
	if n := next(); n != 901 {
		t.Errorf("end of the claim: in %d s", n)
	}
	b.runner.reportsByRun[b.task(id).CurrentRunID] = WorkerReport{}
	if n := next(); n != 60 {
		t.Errorf("a worker known by pid only: in %d s", n)
	}
	b.reportExit(id, Exit{Code: 75})
	b.tick()
	if n := next(); n != 300 {
		t.Errorf("cooldown: in %d s", n)
	}
	b.advance(200 * time.Second)
	if n := next(); n != 100 {
		t.Errorf("rest of the cooldown: in %d s", n)
	}
	b.advance(200 * time.Second)
	if n := next(); n != 0 {
		t.Errorf("nothing left: in %d s", n)
	}
}

func TestManyLanes(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	for i := range 40 {
		b.createReady([]string{"alpha", "beta", "", "ghost"}[i%4])
	}
	b.dispatcher.Config.MaxSpawn = new(7)
	b.dispatcher.Config.MaxInProgressPerProfile = new(4)
	r := b.tick()
	if len(r.Spawned) != 7 {
		t.Errorf("%d spawned", len(r.Spawned))
	}
	if got := fmt.Sprint(spawnedByProfile(r)); got != "map[alpha:4 beta:3]" {
		t.Error(got)
	}
	b.checkIntegrity()
}

// TestARemovedLockIsNoLock checks that only one of two dispatchers works after a user has removed
// the lock file.
func TestARemovedLockIsNoLock(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	held, err := b.dispatcher.HoldTickLock()
	if must(t, err); !held {
		t.Fatal("not held")
	}
	must(t, os.Remove(b.paths.TickLock()))
	id := b.createReady("alpha")
	other, held, err := TryLock(b.paths.TickLock())
	if must(t, err); !held {
		t.Fatal("the new file is locked")
	}
	if res := b.tick(); !res.SkippedLocked || b.task(id).Status != Ready {
		t.Errorf("two dispatchers at a time: %+v", res)
	}
	other.Release()
	checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
}
