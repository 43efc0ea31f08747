package kanban

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestClaims checks the rows of the contract about claims, section 28.4.
func TestClaims(t *testing.T) {
	t.Parallel()
	t.Run("one wins; eight threads", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		var wins atomic.Int32
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				s, err := Open(t.Context(), b.paths, Options{Env: b.env.get})
				if err != nil {
					t.Error(err)
					return
				}
				defer s.Close()
				if _, won, err := s.claim(t.Context(), b.now, id, claimOptions{from: Ready}); err != nil {
					t.Error(err)
				} else if won {
					wins.Add(1)
				}
			})
		}
		wait.Wait()
		if wins.Load() != 1 || b.countEvents(id, "claimed") != 1 {
			t.Errorf("%d winners, %d events", wins.Load(), b.countEvents(id, "claimed"))
		}
		b.checkIntegrity()
	})
	t.Run("env TTL", func(t *testing.T) {
		b := newBoard(t)
		b.env["HERMES_KANBAN_CLAIM_TTL_SECONDS"] = "3600"
		id := b.createReady("alpha")
		task := b.claimForPID(id, 71, true)
		if got := task.ClaimExpires - b.now.Unix(); got != 3600 {
			t.Errorf("claim: %d s", got)
		}
		b.advance(time.Minute)
		ok, err := b.HeartbeatClaim(t.Context(), b.now, id, task.ClaimLock, 0)
		if must(t, err); !ok || b.task(id).ClaimExpires != b.now.Unix()+3600 {
			t.Errorf("heartbeat: %v %+v", ok, b.task(id))
		}
		b.advance(3601 * time.Second)
		b.tick()
		if got := b.task(id).ClaimExpires - b.now.Unix(); got != 3600 || b.lastRun(id).ClaimExpires != b.task(id).ClaimExpires {
			t.Errorf("extension: %d s", got)
		}
		for _, bad := range []string{"0", "-5", "soon", " "} {
			b.env["HERMES_KANBAN_CLAIM_TTL_SECONDS"] = bad
			if got := b.claimSeconds(0); got != 900 {
				t.Errorf("%q: %d s", bad, got)
			}
		}
		if got := b.claimSeconds(time.Millisecond); got != 1 {
			t.Errorf("least: %d s", got)
		}
	})
	t.Run("non-ready", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		for _, s := range Statuses {
			if s == Ready {
				continue
			}
			b.execSQL("UPDATE tasks SET status = ? WHERE id = ?", s, id)
			if _, won, err := b.Store.claim(t.Context(), b.now, id, claimOptions{from: Ready}); won || err != nil {
				t.Errorf("%s: %v %v", s, won, err)
			}
		}
		if _, won, err := b.Store.claim(t.Context(), b.now, "t_ffffffff", claimOptions{from: Ready}); won || err != nil {
			t.Errorf("unknown: %v %v", won, err)
		}
	})
	t.Run("parents not done at claim", func(t *testing.T) {
		b := newBoard(t)
		parent, child := b.createReady("alpha"), b.createReady("alpha")
		b.execSQL("INSERT INTO task_links VALUES (?, ?)", parent, child) // Insert the link directly, because Link would refuse it.
		if _, won, err := b.Store.claim(t.Context(), b.now, child, claimOptions{from: Ready}); won || err != nil {
			t.Errorf("%v %v", won, err)
		}
		b.checkStatus(child, Todo)
		checkEqual(t, "events", b.eventKinds(child), "created", "claim_rejected")
	})
	t.Run("a leaked run is closed", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		old := b.claim(id).CurrentRunID
		b.execSQL("UPDATE tasks SET status = 'ready', claim_lock = NULL WHERE id = ?", id)
		b.claim(id)
		runs, err := b.Runs(t.Context(), id)
		must(t, err)
		if len(runs) != 2 || runs[0].ID != old || runs[0].Outcome != "reclaimed" || runs[0].EndedAt == 0 {
			t.Errorf("%+v", runs)
		}
		b.checkIntegrity()
	})
	t.Run("started_at is the first start", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		first := b.claim(id).StartedAt
		b.advance(DefaultClaimTTL + time.Second)
		b.dryTick()
		if again := b.claim(id); again.StartedAt != first || b.lastRun(id).StartedAt != b.now.Unix() {
			t.Errorf("%d then %d", first, again.StartedAt)
		}
	})
}

func TestReclaim(t *testing.T) {
	t.Parallel()
	expired := func(t *testing.T, alive bool) (*testBoard, string) {
		b := newBoard(t)
		b.dispatcher.Config.MaxSpawn = new(0)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, alive)
		b.advance(DefaultClaimTTL + time.Second)
		return b, id
	}
	t.Run("stale claim, dead pid", func(t *testing.T) {
		b, id := expired(t, false)
		if r := b.tick(); r.Reclaimed != 1 || len(r.Crashed) != 0 {
			t.Errorf("%+v", r)
		}
		b.checkStatus(id, Ready)
		checkEqual(t, "signals", b.procs.signals, 71)
		b.checkIntegrity()
	})
	t.Run("stale claim, live pid", func(t *testing.T) {
		b, id := expired(t, true)
		was := b.task(id).ClaimExpires
		if r := b.tick(); r.Reclaimed != 0 {
			t.Errorf("%+v", r)
		}
		b.checkStatus(id, Running)
		checkEqual(t, "signals", b.procs.signals)
		checkEqual(t, "events", b.eventKinds(id), "created", "claimed", "claim_extended")
		p := b.lastPayload(id, "claim_extended")
		if p["reason"] != "pid_alive" || p["worker_pid"] != 71.0 || p["claim_expires_was"] != float64(was) || p["last_heartbeat_at"] != nil {
			t.Errorf("%v", p)
		}
	})
	t.Run("live pid, heartbeat an hour old", func(t *testing.T) {
		b, id := expired(t, true)
		b.execSQL("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", b.now.Unix()-3601, id)
		if r := b.tick(); r.Reclaimed != 1 {
			t.Errorf("%+v", r)
		}
		b.checkStatus(id, Ready)
	})
	t.Run("survivor", func(t *testing.T) {
		b, id := expired(t, true)
		b.procs.survives[71] = true
		b.execSQL("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", b.now.Unix()-3601, id)
		if r := b.tick(); r.Reclaimed != 0 {
			t.Errorf("%+v", r)
		}
		task := b.task(id)
		if task.Status != Running || task.WorkerPID != 71 || task.ClaimExpires != b.now.Unix()+120 {
			t.Errorf("%+v", task)
		}
		if p := b.lastPayload(id, "reclaim_deferred"); p["reason"] != "ttl_expired_worker_alive" || p["sigkill"] != true || p["terminated"] != false {
			t.Errorf("%v", p)
		}
	})
	t.Run("not host-local", func(t *testing.T) {
		b, id := expired(t, true)
		b.execSQL("UPDATE tasks SET claim_lock = 'elsewhere:9' WHERE id = ?", id)
		if r := b.tick(); r.Reclaimed != 1 {
			t.Errorf("%+v", r)
		}
		checkEqual(t, "signals", b.procs.signals)
		if p := b.lastPayload(id, "reclaimed"); p["host_local"] != false || p["termination_attempted"] != false {
			t.Errorf("%v", p)
		}
	})
	t.Run("reclaim payload", func(t *testing.T) {
		b, id := expired(t, false)
		b.tick()
		list := b.events(id)
		got := list[len(list)-1].Payload
		for _, key := range []string{
			"stale_lock", "worker_pid", "claim_expires", "last_heartbeat_at", "now", "host_local", "heartbeat_stale",
			"prev_pid", "termination_attempted", "terminated", "sigkill",
		} {
			if strings.Count(got, `"`+key+`"`) != 1 {
				t.Errorf("%s is not once in %s", key, got)
			}
		}
	})
	t.Run("a heartbeat in between saves the claim", func(t *testing.T) {
		b, id := expired(t, false)
		p := &boardPass{Dispatcher: b.dispatcher, ctx: t.Context(), now: b.now.Unix(), res: &TickResult{}}
		must(t, p.observeWorkers())
		ok, err := b.HeartbeatClaim(t.Context(), b.now, id, b.task(id).ClaimLock, 0)
		if must(t, err); !ok {
			t.Fatal("no heartbeat")
		}
		must(t, p.releaseStaleClaims())
		b.checkStatus(id, Running)
	})
	t.Run("an old lock cannot reset a re-claimed task", func(t *testing.T) {
		b, id := expired(t, false)
		p := &boardPass{Dispatcher: b.dispatcher, ctx: t.Context(), now: b.now.Unix(), res: &TickResult{}}
		must(t, p.observeWorkers())
		b.tick()
		again := b.claim(id)
		for _, step := range []func() error{p.releaseStaleClaims, p.detectCrashed} {
			must(t, step())
		}
		if task := b.task(id); task.Status != Running || task.ClaimLock != again.ClaimLock || task.ConsecutiveFailures != 0 {
			t.Errorf("%+v", task)
		}
		b.checkIntegrity()
	})
	t.Run("manual", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		if ok, err := b.dispatcher.Reclaim(t.Context(), b.now, id, "x"); ok || err != nil {
			t.Errorf("a ready task: %v %v", ok, err)
		}
		if ok, err := b.dispatcher.Reclaim(t.Context(), b.now, "t_ffffffff", "x"); ok || err != nil {
			t.Errorf("an unknown task: %v %v", ok, err)
		}
		lock := b.claimForPID(id, 71, true).ClaimLock
		b.execSQL("UPDATE tasks SET consecutive_failures = 1 WHERE id = ?", id)
		ok, err := b.dispatcher.Reclaim(t.Context(), b.now, id, "stuck")
		if must(t, err); !ok {
			t.Fatal("not reclaimed")
		}
		task := b.task(id)
		if task.Status != Ready || task.ConsecutiveFailures != 0 || task.WorkerPID != 0 {
			t.Errorf("%+v", task)
		}
		checkEqual(t, "signals", b.procs.signals, 71)
		p := b.lastPayload(id, "reclaimed")
		if p["manual"] != true || p["reason"] != "stuck" || p["prev_pid"] != 71.0 || p["terminated"] != true || p["prev_lock"] != lock {
			t.Errorf("%v", p)
		}
		if run := b.lastRun(id); run.Outcome != "reclaimed" || run.Error != "manual_reclaim: stuck" {
			t.Errorf("%+v", run)
		}
		b.checkIntegrity()
	})
	// A dispatcher starts the reclaimed task again while its old worker ends. The reclaim must not
	// touch the new attempt.
	t.Run("a reclaim beside a running dispatcher leaves the next attempt alone", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.tick()
		first := b.task(id)
		var second Task
		b.procs.onEnd = func() {
			b.reportExit(id, Exit{Signal: 15, Terminated: true})
			b.tick()
			second = b.task(id)
		}
		ok, err := b.dispatcher.Reclaim(t.Context(), b.now, id, "stuck")
		must(t, err)
		if now := b.task(id); !ok || second.CurrentRunID == first.CurrentRunID || now.CurrentRunID != second.CurrentRunID || now.Status != Running {
			t.Errorf("%v: first %+v, second %+v, now %+v", ok, first, second, now)
		}
		if first.ClaimLock == second.ClaimLock || !strings.HasPrefix(second.ClaimLock, b.Claimer()+".") {
			t.Errorf("locks %q and %q", first.ClaimLock, second.ClaimLock)
		}
		// The agent's reclaim_task requires the lock that it has read, so this update must not hit the
		// later claim.
		res, err := b.db.ExecContext(t.Context(), "UPDATE tasks SET status = 'ready' WHERE id = ? AND claim_lock = ?", id, first.ClaimLock)
		must(t, err)
		if n, _ := res.RowsAffected(); n != 0 {
			t.Error("a lock that was seen before meets a later claim")
		}
		b.checkIntegrity()
	})
	t.Run("manual does not wait for a survivor", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, true)
		b.procs.survives[71] = true
		ok, err := b.dispatcher.Reclaim(t.Context(), b.now, id, "")
		if must(t, err); !ok || b.task(id).Status != Ready {
			t.Error("not reclaimed")
		}
	})
	t.Run("reassign", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, true)
		if ok, err := b.dispatcher.Reassign(t.Context(), b.now, id, "beta", false, ""); ok || err != nil {
			t.Errorf("while running: %v %v", ok, err)
		}
		ok, err := b.dispatcher.Reassign(t.Context(), b.now, id, " Beta ", true, "")
		if must(t, err); !ok || b.task(id).Assignee != "beta" {
			t.Errorf("%v %+v", ok, b.task(id))
		}
	})
}

func TestHeartbeats(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	if ok, err := b.HeartbeatWorker(t.Context(), b.now, id, "", 0); ok || err != nil {
		t.Errorf("not running: %v %v", ok, err)
	}
	task := b.claim(id)
	b.advance(time.Minute)
	if ok, err := b.HeartbeatClaim(t.Context(), b.now, id, "host:1", 0); ok || err != nil {
		t.Errorf("another's lock: %v %v", ok, err)
	}
	ok, err := b.HeartbeatWorker(t.Context(), b.now, id, "half way", task.CurrentRunID)
	if must(t, err); !ok || b.task(id).LastHeartbeatAt != b.now.Unix() || b.lastRun(id).LastHeartbeatAt != b.now.Unix() {
		t.Errorf("%v %+v", ok, b.task(id))
	}
	if p := b.lastPayload(id, "heartbeat"); p["note"] != "half way" {
		t.Errorf("%v", p)
	}
	// A finished run must not change a newer attempt.
	stale := task.CurrentRunID
	b.advance(DefaultClaimTTL)
	b.dispatcher.Config.MaxSpawn = new(0)
	b.tick()
	b.claim(id)
	for name, try := range map[string]func() (bool, error){
		"complete":  func() (bool, error) { return b.Complete(t.Context(), b.now, id, Completion{Run: stale, Summary: "x"}) },
		"block":     func() (bool, error) { return b.Block(t.Context(), b.now, id, "x", stale) },
		"schedule":  func() (bool, error) { return b.Schedule(t.Context(), b.now, id, "x", stale) },
		"heartbeat": func() (bool, error) { return b.HeartbeatWorker(t.Context(), b.now, id, "", stale) },
	} {
		before := dumpTables(t, b.Store, "tasks", "task_runs", "task_events")
		if ok, err := try(); ok || err != nil || dumpTables(t, b.Store, "tasks", "task_runs", "task_events") != before {
			t.Errorf("%s: %v %v", name, ok, err)
		}
	}
}

// TestNoRunEndsBeforeItBegan checks that a run never ends before its start, even if the clock was
// set back.
func TestNoRunEndsBeforeItBegan(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *testBoard, id string, early time.Time) error{
		"complete": func(b *testBoard, id string, early time.Time) error {
			_, err := b.Complete(b.t.Context(), early, id, Completion{Summary: "done"})
			return err
		},
		"block": func(b *testBoard, id string, early time.Time) error {
			_, err := b.Block(b.t.Context(), early, id, "why", 0)
			return err
		},
		"schedule": func(b *testBoard, id string, early time.Time) error {
			_, err := b.Schedule(b.t.Context(), early, id, "later", 0)
			return err
		},
		"archive": func(b *testBoard, id string, early time.Time) error {
			_, err := b.Archive(b.t.Context(), early, id)
			return err
		},
		"reclaim": func(b *testBoard, id string, early time.Time) error {
			_, err := b.dispatcher.Reclaim(b.t.Context(), early, id, "by hand")
			return err
		},
		"crash": func(b *testBoard, id string, early time.Time) error {
			b.runner.reportsStarted = true
			b.reportExit(id, Exit{Code: 1})
			_, err := b.dispatcher.Tick(b.t.Context(), early, TickOptions{})
			return err
		},
		"leaked": func(b *testBoard, id string, early time.Time) error {
			b.execSQL("UPDATE tasks SET status = 'ready', claim_lock = NULL, worker_pid = NULL WHERE id = ?", id)
			_, _, err := b.Store.claim(b.t.Context(), early, id, claimOptions{from: Ready})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoard(t)
			id := b.createReady("alpha")
			run := b.claimForPID(id, 71, true).CurrentRunID
			must(t, end(b, id, b.now.Add(-time.Minute)))
			runs, err := b.Runs(t.Context(), id)
			if must(t, err); len(runs) == 0 || runs[0].ID != run || runs[0].EndedAt != runs[0].StartedAt {
				t.Errorf("%+v", runs)
			}
			if task := b.task(id); task.CompletedAt != 0 && task.CompletedAt < task.StartedAt {
				t.Errorf("completed at %d, started at %d", task.CompletedAt, task.StartedAt)
			}
			b.checkIntegrity()
		})
	}
}
