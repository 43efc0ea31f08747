package kanban

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFailureLimit checks the rows of the contract about limits, run times and stale tasks, section
// 28.6.
func TestFailureLimit(t *testing.T) {
	t.Parallel()
	t.Run("spawn failure twice", func(t *testing.T) {
		b := newBoard(t)
		b.runner.startError = errors.New("exec format error")
		id := b.createReady("alpha")
		if r := b.tick(); len(r.AutoBlocked) != 0 || b.task(id).ConsecutiveFailures != 1 || b.lastRun(id).Outcome != "spawn_failed" {
			t.Errorf("%+v %+v", r, b.lastRun(id))
		}
		if p := b.lastPayload(id, "spawn_failed"); p["error"] != "exec format error" || p["failures"] != 1.0 {
			t.Errorf("%v", p)
		}
		r := b.tick()
		checkEqual(t, "auto-blocked", r.AutoBlocked, id)
		b.checkStatus(id, Blocked)
		if b.lastRun(id).Outcome != "gave_up" || b.countEvents(id, "gave_up") != 1 || b.countEvents(id, "spawn_auto_blocked") != 0 {
			t.Errorf("%+v %q", b.lastRun(id), b.eventKinds(id))
		}
		if p := b.lastPayload(id, "gave_up"); p["limit_source"] != "dispatcher" || p["trigger_outcome"] != "spawn_failed" {
			t.Errorf("%v", p)
		}
		b.checkIntegrity()
	})
	t.Run("a successful spawn keeps the counter, completion resets it", func(t *testing.T) {
		b := newBoard(t)
		b.runner.startError = errors.New("no")
		id := b.createReady("alpha")
		b.tick()
		b.runner.startError = nil
		b.tick()
		if n := b.task(id).ConsecutiveFailures; n != 1 {
			t.Errorf("after a spawn: %d", n)
		}
		_, err := b.Complete(t.Context(), b.now, id, Completion{})
		must(t, err)
		if n := b.task(id).ConsecutiveFailures; n != 0 {
			t.Errorf("after completion: %d", n)
		}
	})
	t.Run("reassignment and unblock reset", func(t *testing.T) {
		b := newBoard(t)
		id := b.createReady("alpha")
		set := func(status Status) {
			b.execSQL("UPDATE tasks SET consecutive_failures = 2, last_failure_error = 'x', status = ? WHERE id = ?", status, id)
		}
		set(Ready)
		_, err := b.Assign(t.Context(), b.now, id, "alpha")
		must(t, err)
		if b.task(id).ConsecutiveFailures != 2 {
			t.Error("the same profile resets")
		}
		_, err = b.Assign(t.Context(), b.now, id, "beta")
		must(t, err)
		if task := b.task(id); task.ConsecutiveFailures != 0 || task.LastFailureError != "" {
			t.Errorf("%+v", task)
		}
		set(Blocked)
		_, err = b.Unblock(t.Context(), b.now, id)
		must(t, err)
		if task := b.task(id); task.ConsecutiveFailures != 0 || task.LastFailureError != "" || task.Status != Ready {
			t.Errorf("%+v", task)
		}
	})
	t.Run("max_retries", func(t *testing.T) {
		for _, c := range []struct {
			retries *int64
			want    int
			source  string
		}{{new(int64(1)), 1, "task"}, {new(int64(5)), 5, "task"}, {nil, 4, "dispatcher"}} {
			b := newBoard(t)
			b.dispatcher.Config.FailureLimit = 4
			b.runner.startError = errors.New("no")
			id := b.create(Task{Assignee: "alpha", MaxRetries: c.retries})
			n := 0
			for b.task(id).Status == Ready && n < 10 {
				b.tick()
				n++
			}
			if p := b.lastPayload(id, "gave_up"); n != c.want || p["limit_source"] != c.source || p["effective_limit"] != float64(c.want) {
				t.Errorf("%d tries, %v", n, p)
			}
		}
	})
	t.Run("crashes have the configured limit too", func(t *testing.T) { // The agent's own dispatcher differs: it uses its built-in limit of 2.
		b := newBoard(t)
		b.dispatcher.Config.FailureLimit = 3
		id := b.createReady("alpha")
		for _, want := range []Status{Running, Running, Blocked} {
			b.tick()
			b.reportExit(id, Exit{Code: 1})
			b.tick()
			b.checkStatus(id, want)
		}
	})
	t.Run("workspace failure", func(t *testing.T) {
		b := newBoard(t)
		id := b.create(Task{Assignee: "alpha", WorkspaceKind: WorkspaceDir, WorkspacePath: "relative/path"})
		b.tick()
		if task := b.task(id); task.ConsecutiveFailures != 1 || !strings.Contains(task.LastFailureError, "workspace") {
			t.Errorf("%+v", task)
		}
		b.tick()
		b.checkStatus(id, Blocked)
	})
	t.Run("long errors are cut", func(t *testing.T) {
		b := newBoard(t)
		b.runner.startError = errors.New(strings.Repeat("ä", 1000))
		id := b.createReady("alpha")
		b.tick()
		if n := len([]rune(b.task(id).LastFailureError)); n != 500 {
			t.Errorf("%d characters", n)
		}
	})
}

func TestMaxRuntime(t *testing.T) {
	t.Parallel()
	timed := func(b *testBoard) string { return b.create(Task{Assignee: "alpha", MaxRuntimeSeconds: new(int64(60))}) }
	t.Run("overrun", func(t *testing.T) {
		b := newBoard(t)
		id := timed(b)
		b.claimForPID(id, 71, true)
		b.execSQL("UPDATE tasks SET last_heartbeat_at = 5 WHERE id = ?", id)
		b.dispatcher.Config.MaxSpawn = new(0)
		b.advance(59 * time.Second)
		checkEqual(t, "in time", b.tick().TimedOut)
		b.advance(time.Second)
		checkEqual(t, "timed out", b.tick().TimedOut, id)
		checkEqual(t, "signals", b.procs.signals, 71)
		if task := b.task(id); task.Status != Ready || task.WorkerPID != 0 || task.LastHeartbeatAt != 0 || task.ConsecutiveFailures != 1 {
			t.Errorf("%+v", task)
		}
		p := b.lastPayload(id, "timed_out")
		if p["pid"] != 71.0 || p["elapsed_seconds"] != 60.0 || p["limit_seconds"] != 60.0 || p["sigkill"] != false {
			t.Errorf("%v", p)
		}
		b.claimForPID(id, 72, true) // A new attempt gets the full maximum runtime.
		b.advance(30 * time.Second)
		checkEqual(t, "fresh", b.tick().TimedOut)
		b.advance(31 * time.Second)
		r := b.tick()
		checkEqual(t, "again", r.TimedOut, id)
		checkEqual(t, "auto-blocked", r.AutoBlocked, id)
		b.checkIntegrity()
	})
	t.Run("no cap", func(t *testing.T) {
		b := newBoard(t)
		b.claimForPID(b.createReady("alpha"), 71, true)
		b.advance(1000 * time.Hour)
		checkEqual(t, "timed out", b.tick().TimedOut)
	})
	t.Run("a survivor keeps its task", func(t *testing.T) { // The agent's own dispatcher differs: it gives the task to a second worker.
		b := newBoard(t)
		id := timed(b)
		b.claimForPID(id, 71, true)
		b.procs.survives[71] = true
		b.advance(time.Hour / 60 * 2)
		checkEqual(t, "timed out", b.tick().TimedOut)
		if task := b.task(id); task.Status != Running || task.WorkerPID != 71 {
			t.Errorf("%+v", task)
		}
		if p := b.lastPayload(id, "reclaim_deferred"); p["reason"] != "max_runtime_worker_alive" {
			t.Errorf("%v", p)
		}
		b.procs.survives[71] = false
		checkEqual(t, "timed out", b.tick().TimedOut, id)
	})
	t.Run("through the runner", func(t *testing.T) {
		b := newBoard(t)
		b.runner.reportsStarted = true
		id := timed(b)
		b.tick()
		run := b.task(id).CurrentRunID
		b.advance(time.Minute)
		b.dispatcher.Config.MaxSpawn = new(0)
		checkEqual(t, "timed out", b.tick().TimedOut, id)
		checkEqual(t, "ended", b.runner.ended, run)
		checkEqual(t, "signals", b.procs.signals)
	})
}

func TestStale(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		heartbeat time.Duration // Age of the last heartbeat; negative for none.
		age       time.Duration
		limit     time.Duration
		status    Status
		want      bool
	}{
		"no heartbeat":     {-1, 5 * time.Hour, 4 * time.Hour, Running, true},
		"old heartbeat":    {time.Hour, 5 * time.Hour, 4 * time.Hour, Running, true},
		"recent heartbeat": {time.Hour - time.Second, 5 * time.Hour, 4 * time.Hour, Running, false},
		"young":            {-1, 3 * time.Hour, 4 * time.Hour, Running, false},
		"limit 0":          {-1, 5 * time.Hour, 0, Running, false},
		"blocked":          {-1, 5 * time.Hour, 4 * time.Hour, Blocked, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoard(t)
			b.dispatcher.Config.StaleTimeout, b.dispatcher.Config.MaxSpawn = c.limit, new(0)
			id := b.createReady("alpha")
			b.claimForPID(id, 71, true)
			b.advance(c.age)
			b.execSQL("UPDATE tasks SET claim_expires = ? WHERE id = ?", b.now.Unix()+900, id)
			if c.status == Blocked {
				_, err := b.Block(t.Context(), b.now, id, "x", 0)
				must(t, err)
			}
			if c.heartbeat >= 0 {
				b.execSQL("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", b.now.Add(-c.heartbeat).Unix(), id)
			}
			r := b.tick()
			if got := len(r.Stale) == 1; got != c.want {
				t.Errorf("stale %v", r.Stale)
			}
			if !c.want {
				b.checkStatus(id, c.status)
				return
			}
			if task := b.task(id); task.Status != Ready || task.ConsecutiveFailures != 0 || b.lastRun(id).Outcome != "stale" {
				t.Errorf("%+v", task)
			}
			if p := b.lastPayload(id, "stale"); p["timeout_seconds"] != 14400.0 || p["pid"] != 71.0 || p["terminated"] != true {
				t.Errorf("%v", p)
			}
		})
	}
	t.Run("foreign claims too", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.StaleTimeout, b.dispatcher.Config.MaxSpawn = 4*time.Hour, new(0)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, true)
		b.execSQL("UPDATE tasks SET claim_lock = 'elsewhere:1', claim_expires = ? WHERE id = ?", b.now.Add(100*time.Hour).Unix(), id)
		b.advance(5 * time.Hour)
		checkEqual(t, "stale", b.tick().Stale, id)
		checkEqual(t, "signals", b.procs.signals)
	})
	t.Run("survivor", func(t *testing.T) {
		b := newBoard(t)
		b.dispatcher.Config.StaleTimeout, b.dispatcher.Config.MaxSpawn = time.Minute, new(0)
		id := b.createReady("alpha")
		b.claimForPID(id, 71, true)
		b.procs.survives[71] = true
		b.advance(2 * time.Minute)
		checkEqual(t, "stale", b.tick().Stale)
		if p := b.lastPayload(id, "reclaim_deferred"); p["reason"] != "heartbeat_stale_worker_alive" {
			t.Errorf("%v", p)
		}
	})
}

func TestPromotion(t *testing.T) {
	t.Parallel()
	blocked := func(b *testBoard, failures int, retries *int64) string {
		id := b.create(Task{Assignee: "alpha", MaxRetries: retries})
		b.execSQL("UPDATE tasks SET status = 'blocked', consecutive_failures = ? WHERE id = ?", failures, id)
		return id
	}
	t.Run("limits", func(t *testing.T) {
		for _, c := range []struct {
			failures, limit int
			retries         *int64
			want            Status
		}{{2, 2, nil, Blocked}, {1, 2, nil, Ready}, {2, 4, nil, Ready}, {2, 4, new(int64(2)), Blocked}, {2, 1, new(int64(3)), Ready}} {
			b := newBoard(t)
			id := blocked(b, c.failures, c.retries)
			n, err := b.RecomputeReady(t.Context(), b.now, c.limit)
			must(t, err)
			b.checkStatus(id, c.want)
			if task := b.task(id); task.ConsecutiveFailures != int64(c.failures) || n != b.countEvents(id, "promoted") {
				t.Errorf("%+v, %d promoted", task, n)
			}
		}
	})
	t.Run("a worker's block stays", func(t *testing.T) {
		b := newBoard(t)
		parent := b.createReady("alpha")
		id := b.create(Task{Assignee: "alpha"}, parent)
		b.execSQL("UPDATE tasks SET status = 'ready' WHERE id = ?", id)
		_, err := b.Block(t.Context(), b.now, id, "needs a decision", 0)
		must(t, err)
		_, err = b.Complete(t.Context(), b.now, parent, Completion{})
		must(t, err)
		b.execSQL("INSERT INTO task_events (task_id, kind, created_at) VALUES (?, 'gave_up', 1)", id)
		for range 5 {
			b.tick()
			b.checkStatus(id, Blocked)
		}
		_, err = b.Unblock(t.Context(), b.now, id)
		must(t, err)
		b.checkStatus(id, Ready)
	})
	t.Run("a breaker's block recovers when the limit is raised", func(t *testing.T) {
		b := newBoard(t)
		b.runner.startError = errors.New("no")
		id := b.createReady("alpha")
		b.tick()
		b.tick()
		b.tick()
		b.checkStatus(id, Blocked)
		b.dispatcher.Config.FailureLimit = 3
		b.runner.startError = nil
		checkEqual(t, "spawned", spawnedIDs(b.tick()), id)
	})
	t.Run("archived parents count as finished everywhere", func(t *testing.T) { // The agent's own dispatcher treats archived parents differently.
		b := newBoard(t)
		parent := b.createReady("alpha")
		_, err := b.Archive(t.Context(), b.now, parent)
		must(t, err)
		id := b.create(Task{}, parent)
		b.checkStatus(id, Ready)
		_, err = b.Block(t.Context(), b.now, id, "x", 0)
		must(t, err)
		_, err = b.Unblock(t.Context(), b.now, id)
		must(t, err)
		b.checkStatus(id, Ready)
		other := b.createReady("alpha")
		must(t, b.Link(t.Context(), b.now, parent, other))
		b.checkStatus(other, Ready)
	})
	t.Run("scheduled and triage stay", func(t *testing.T) {
		b := newBoard(t)
		for _, s := range []Status{Scheduled, Triage, Blocked} {
			id := b.create(Task{Assignee: "alpha", Status: s})
			b.tick()
			b.checkStatus(id, s)
		}
	})
}

// TestRespawnGuard checks the rows of the contract about the respawn guard, section 28.7.
func TestRespawnGuard(t *testing.T) {
	t.Parallel()
	guarded := func(b *testBoard, id string) string {
		b.t.Helper()
		p := &boardPass{Dispatcher: b.dispatcher, ctx: b.t.Context(), now: b.now.Unix(), res: &TickResult{}}
		reason, _, err := p.holdReason(id, Ready)
		must(b.t, err)
		return reason
	}
	b := newBoard(t)
	if got := guarded(b, b.createReady("alpha")); got != "" {
		t.Errorf("fresh: %s", got)
	}
	for text, want := range map[string]string{
		"insufficient quota": guardAuth, "HTTP 401 Unauthorized": guardAuth, "authentication failed": guardAuth, "Authorization header missing": guardAuth,
		"rate limit hit": guardAuth, "rate-limit": guardAuth, "rate_limit": guardAuth, "RateLimit": guardAuth, "got 429": guardAuth, "403": guardAuth,
		"Forbidden": guardAuth, "billing": guardAuth, "no subscription": guardAuth, "access denied": guardAuth, "Permission denied": guardAuth,
		"Invalid API key": guardAuth, "pid 4290 not alive": "", "out of memory": "", "": "",
	} {
		id := b.createReady("alpha")
		b.execSQL("UPDATE tasks SET last_failure_error = ? WHERE id = ?", text, id)
		if got := guarded(b, id); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
	completed := func(ago int64) string {
		id := b.createReady("alpha")
		at := b.now.Unix() - ago
		b.execSQL("INSERT INTO task_runs (task_id, status, outcome, started_at, ended_at) VALUES (?, 'done', 'completed', ?, ?)", id, at, at)
		return id
	}
	if got := guarded(b, completed(60)); got != guardSuccess {
		t.Errorf("completed a minute ago: %q", got)
	}
	if got := guarded(b, completed(3700)); got != "" {
		t.Errorf("completed long ago: %q", got)
	}
	id := b.createReady("alpha")
	err := b.AddComment(t.Context(), b.now, id, "alpha", "opened https://github.com/a/b/pull/12")
	must(t, err)
	if got := guarded(b, id); got != guardActivePR {
		t.Errorf("a pull request: %q", got)
	}
	b.advance(25 * time.Hour)
	if got := guarded(b, id); got != "" {
		t.Errorf("an old pull request: %q", got)
	}
}

func TestRespawnGuardInATick(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id, clean := b.createReady("alpha"), b.createReady("alpha")
	b.execSQL("UPDATE tasks SET last_failure_error = '403 Forbidden' WHERE id = ?", id)
	r := b.dryTick()
	checkEqual(t, "guarded in a dry run", r.RespawnGuarded, GuardedTask{id, guardAuth})
	if b.countEvents(id, "respawn_guarded") != 0 {
		t.Error("a dry run wrote an event")
	}
	r = b.tick()
	checkEqual(t, "guarded", r.RespawnGuarded, GuardedTask{id, guardAuth})
	checkEqual(t, "spawned", spawnedIDs(r), clean)
	checkEqual(t, "auto-blocked", r.AutoBlocked)
	b.checkStatus(id, Ready)
	if p := b.lastPayload(id, "respawn_guarded"); p["reason"] != guardAuth {
		t.Errorf("%v", p)
	}
	b.tick()
	b.tick()
	if n := b.countEvents(id, "respawn_guarded"); n != 1 { // The agent's own dispatcher differs: it writes one event for each pass.
		t.Errorf("%d events for one spell", n)
	}
}

func TestCooldown(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]map[time.Duration]bool{
		"":      {100 * time.Second: false, 400 * time.Second: true},
		"bad":   {299 * time.Second: false, 300 * time.Second: true},
		"0":     {0: true},
		" 1000": {999 * time.Second: false, 1000 * time.Second: true},
	} {
		for wait, free := range want {
			b := newBoard(t)
			id := b.createReady("alpha")
			b.tick()
			b.reportExit(id, Exit{Code: 75})
			b.dispatcher.Config.MaxSpawn = new(0)
			b.env["HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS"] = value
			b.tick()
			b.dispatcher.Config.MaxSpawn = nil
			b.advance(wait)
			if r := b.tick(); (len(r.Spawned) == 1) != free { // The word quota in the failure text must not hold the task back longer.
				t.Errorf("%q after %s: %+v", value, wait, r)
			}
		}
	}
}

func TestAQuotaWallIsForgotten(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	id := b.createReady("alpha")
	b.tick()
	b.reportExit(id, Exit{Code: 75})
	b.tick()
	b.advance(DefaultRateLimitCooldown)
	b.tick()
	b.reportExit(id, Exit{Terminated: true}) // This attempt ends without an error text.
	r := b.tick()
	checkEqual(t, "released", r.Released, id)
	checkEqual(t, "guarded", r.RespawnGuarded)
	checkEqual(t, "spawned", spawnedIDs(r), id)
}

// TestCollect checks that RemoveOldEventsAndLogs removes the old files and logs beside the board (contract,
// 28.12).
func TestCollect(t *testing.T) {
	t.Parallel()
	b := newBoard(t)
	done, open := b.createReady("alpha"), b.createReady("alpha")
	_, err := b.Complete(t.Context(), b.now, done, Completion{})
	must(t, err)
	old, young := b.paths.Log(done), b.paths.Log(open)
	writeTestFile(t, old, []byte("x"))
	writeTestFile(t, old+".1", []byte("x"))
	writeTestFile(t, young, []byte("x"))
	writeTestFile(t, filepath.Join(b.paths.Logs, "notes.txt"), []byte("x"))
	for _, file := range []string{old, old + ".1", filepath.Join(b.paths.Logs, "notes.txt")} {
		must(t, os.Chtimes(file, b.now, b.now))
	}
	must(t, os.Chtimes(young, b.now.Add(40*24*time.Hour), b.now.Add(40*24*time.Hour)))
	c, err := b.RemoveOldEventsAndLogs(t.Context(), b.now.Add(31*24*time.Hour), 30*24*time.Hour, 30*24*time.Hour)
	must(t, err)
	if c.Logs != 2 || c.Events != 2 || len(b.events(done)) != 0 || len(b.events(open)) == 0 {
		t.Errorf("%+v", c)
	}
	for file, want := range map[string]bool{old: false, old + ".1": false, young: true, filepath.Join(b.paths.Logs, "notes.txt"): true} {
		if isFile(file) != want {
			t.Errorf("%s is there: %v", file, !want)
		}
	}
}
