package kanban

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ttl is how long a claim lasts: what was asked for, else HERMES_KANBAN_CLAIM_TTL_SECONDS, else fifteen minutes.
func (s *Store) ttl(asked time.Duration) int64 {
	if asked > 0 {
		return max(1, int64(asked/time.Second))
	}
	return envSeconds(s.opt.Env, "HERMES_KANBAN_CLAIM_TTL_SECONDS", 1, DefaultTTL)
}

// envSeconds reads a number of seconds; whatever is less than the least or no number means the default.
func envSeconds(env Env, name string, least int64, otherwise time.Duration) int64 {
	n, err := strconv.ParseInt(env.trimmed(name), 10, 64)
	if err != nil || n < least {
		return int64(otherwise / time.Second)
	}
	return n
}

// Claim takes a ready task for a worker. False: somebody else has it, it isn't ready, or a parent isn't finished, which sends it
// back to todo. A ttl of 0 is the default one. The task that is returned is without its body.
func (s *Store) Claim(ctx context.Context, now time.Time, id string, ttl time.Duration) (Task, bool, error) {
	return s.claim(ctx, now, id, claimOptions{ttl: ttl, from: Ready})
}

// lockOf is the lock of one claim: host:pid of the claimer, as every writer of the board has it, and the run. No two claims share one, so
// a compare-and-swap on a lock that was seen can't meet a later claim of the same process.
func lockOf(claimer string, run int64) string { return claimer + "." + strconv.FormatInt(run, 10) }

// claimant is the process that made a claim, host:pid.
func claimant(lock string) string {
	colon := strings.LastIndexByte(lock, ':')
	if dot := strings.IndexByte(lock[colon+1:], '.'); colon >= 0 && dot >= 0 {
		return lock[:colon+1+dot]
	}
	return lock
}

type claimOptions struct {
	ttl     time.Duration
	from    Status
	profile string // the assignee that the task must still have; empty: any
	scratch string // where scratch workspaces are: the path goes with the claim and costs no transaction of its own
}

func (s *Store) claim(ctx context.Context, now time.Time, id string, o claimOptions) (task Task, won bool, err error) {
	from := o.from
	expires := now.Unix() + s.ttl(o.ttl)
	_, err = s.change(ctx, now, id, func(t *tx, found Task) (err error) {
		task = found
		if task.Status != from || task.ClaimLock != "" || o.profile != "" && o.profile != task.Assignee {
			return errNothing
		}
		if from == Ready && t.waits(id) {
			t.exec("UPDATE tasks SET status = 'todo' WHERE id = ? AND status = 'ready'", id)
			t.event(id, 0, "claim_rejected", object{{"reason", "parents_not_done"}})
			return nil
		}
		t.closeLeaked(task)
		run := t.insert(`INSERT INTO task_runs (task_id, profile, step_key, status, claim_expires, max_runtime_seconds, started_at)
			VALUES (?, ?, ?, 'running', ?, ?, ?)`,
			id, orNull(task.Assignee), orNull(task.CurrentStepKey), expires, task.MaxRuntimeSeconds, t.now)
		lock := lockOf(s.Claimer(), run)
		t.exec("UPDATE task_runs SET claim_lock = ? WHERE id = ?", lock, run)
		rows := t.exec(`UPDATE tasks SET status = 'running', claim_lock = ?1, claim_expires = ?2, started_at = COALESCE(started_at, ?3), current_run_id = ?7,
				workspace_path = COALESCE(NULLIF(workspace_path, ''), CASE WHEN workspace_kind = 'scratch' AND ?5 <> '' THEN ?5 || '/' || id END)
			WHERE id = ?4 AND status = ?6 AND claim_lock IS NULL`, lock, expires, t.now, id, o.scratch, from, run)
		if rows == 0 {
			return errNothing
		}
		payload := object{{"lock", lock}, {"expires", expires}, {"run_id", run}}
		if from == Review {
			payload = payload.with(pair{"source_status", "review"})
		}
		t.event(id, run, "claimed", payload)
		won = true
		task, err = readTask(ctx, t.conn, id, lean)
		return err
	})
	return task, won && err == nil, err
}

// HeartbeatClaim extends a claim whose lock is given. False: not running, or somebody else's.
func (s *Store) HeartbeatClaim(ctx context.Context, now time.Time, id, lock string, ttl time.Duration) (ok bool, err error) {
	expires := now.Unix() + s.ttl(ttl)
	err = s.write(ctx, now, func(t *tx) error {
		ok = t.extend(id, lock, expires, "")
		return nil
	})
	return ok && err == nil, err
}

// extend moves the end of a claim, of the task and of its run. The condition guards against a claim that has changed hands.
func (t *tx) extend(id, lock string, expires int64, condition string, args ...any) bool {
	rows := t.exec("UPDATE tasks SET claim_expires = ? WHERE id = ? AND status = 'running' AND claim_lock = ?"+condition,
		append([]any{expires, id, lock}, args...)...)
	if rows > 0 {
		t.exec("UPDATE task_runs SET claim_expires = ? WHERE id = (SELECT current_run_id FROM tasks WHERE id = ?) AND ended_at IS NULL", expires, id)
	}
	return rows > 0
}

// HeartbeatWorker notes a sign of life. A run other than 0 must be the current one.
func (s *Store) HeartbeatWorker(ctx context.Context, now time.Time, id, note string, run int64) (bool, error) {
	return s.change(ctx, now, id, func(t *tx, task Task) error {
		if task.Status != Running || run != 0 && run != task.CurrentRunID {
			return errNothing
		}
		t.exec("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", t.now, id)
		t.exec("UPDATE task_runs SET last_heartbeat_at = ? WHERE id = ? AND ended_at IS NULL", t.now, task.CurrentRunID)
		var payload object
		if note != "" {
			payload = object{{"note", note}}
		}
		t.event(id, task.CurrentRunID, "heartbeat", payload)
		return nil
	})
}

// release is how a running task goes back to where it waits.
type release struct {
	event   string
	payload object
	outcome string    // of the run, and its status
	why     string    // its error
	told    *[]string // takes the task's id, for whoever reports it
	counts  bool      // a failure of the task
	trip    int       // a lower limit that this kind of failure has; 0: none
	extra   object    // of the payload when there were too many failures
	set     string    // more columns
	args    []any
	unmoved bool // only while the claim ends when it did: a heartbeat in between saves it
}

// release gives a task back: to ready, or to review where it came from. It is the only way out of running, apart from the ways of the worker and of
// operators. The condition is the run and its claim as they were seen, so that nothing happens to a claim that has changed hands.
func (p *pass) release(w *watched, r release) (ok bool, err error) {
	blocked := false
	w.settled = true
	err = p.write(func(t *tx) {
		condition := " WHERE id = ? AND status = ? AND claim_lock IS ? AND current_run_id IS ?"
		args := append([]any{w.from}, r.args...)
		args = append(args, w.ID, w.Status, orNull(w.ClaimLock), orNull(w.CurrentRunID))
		if r.unmoved {
			condition, args = condition+" AND claim_expires IS ?", append(args, orNull(w.ClaimExpires))
		}
		ok = t.exec(`UPDATE tasks SET status = CASE status WHEN 'running' THEN ? ELSE status END, claim_lock = NULL, claim_expires = NULL,
			worker_pid = NULL, current_run_id = NULL`+r.set+condition, args...) > 0
		if !ok {
			return
		}
		limit, _ := p.limitOf(w.Task, r)
		if blocked = r.counts && w.ConsecutiveFailures+1 >= limit; blocked && r.event == "spawn_failed" {
			t.closeRun(w.CurrentRunID, as("gave_up", r.why))
		} else {
			t.closeRun(w.CurrentRunID, as(r.outcome, r.why))
			t.event(w.ID, w.CurrentRunID, r.event, r.payload)
		}
		if r.counts {
			p.fail(t, w.Task, r, blocked)
		}
	})
	if ok = ok && err == nil; ok && blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, w.ID)
	}
	if ok && r.told != nil {
		*r.told = append(*r.told, w.ID)
		if w.sight == Ended || w.WorkerPID != 0 {
			p.res.Exits = append(p.res.Exits, EndedRun{Task: w.ID, Run: w.CurrentRunID, Profile: w.Assignee, Outcome: r.outcome, Exit: w.exit})
		}
	}
	return ok, err
}

// heartbeatStale says whether the worker was heard of, but not for an hour. One that was never heard of isn't stale.
func (p *pass) heartbeatStale(w *watched) bool {
	return w.LastHeartbeatAt != 0 && p.now-w.LastHeartbeatAt > heartbeatStaleAfter
}

// releaseStaleClaims extends the claims of workers that are alive, and releases expired claims of the others.
func (p *pass) releaseStaleClaims() error {
	var over []*watched
	for _, w := range p.watched {
		switch {
		case w.ClaimExpires == 0 || w.ClaimExpires >= p.now, w.sight == Ended, w.sight == NeverStarted && p.mayStart:
			continue // how it ended counts for more than when
		case w.local && w.WorkerPID != 0 && !p.dead(w) && !p.heartbeatStale(w):
			if err := p.extend(w); err != nil {
				return err
			}
		default:
			over = append(over, w)
		}
	}
	return p.end(over, "ttl_expired_worker_alive", func(w *watched, end Termination) error {
		ok, err := p.release(w, p.reclaimed(w, end, "claim expired"))
		if ok {
			p.res.Reclaimed++
		}
		return err
	})
}

// end terminates workers, and takes the tasks of those back that are gone. A worker that survives keeps its task: another one on the same
// task would be worse.
func (p *pass) end(list []*watched, survives string, gone func(*watched, Termination) error) error {
	var errs []error
	for i, end := range p.terminate(list) {
		w := list[i]
		if !w.survived(end) {
			errs = append(errs, gone(w, end))
			continue
		}
		w.settled = true
		expires := p.now + survivorDefers
		errs = append(errs, p.write(func(t *tx) {
			if t.extend(w.ID, w.ClaimLock, expires, "") {
				t.event(w.ID, w.CurrentRunID, "reclaim_deferred",
					object{{"reason", survives}, {"claim_lock", w.ClaimLock}, {"claim_expires_now", expires}}.with(w.info(end)...))
			}
		}))
	}
	return errors.Join(errs...)
}

func (p *pass) extend(w *watched) error {
	was := w.ClaimExpires
	w.ClaimExpires = p.now + p.Store.ttl(0)
	return p.write(func(t *tx) {
		if t.extend(w.ID, w.ClaimLock, w.ClaimExpires, " AND claim_expires = ?", was) {
			t.event(w.ID, w.CurrentRunID, "claim_extended", object{
				{"reason", "pid_alive"},
				{"worker_pid", w.WorkerPID},
				{"claim_lock", w.ClaimLock},
				{"claim_expires_was", was},
				{"claim_expires_now", w.ClaimExpires},
				{"last_heartbeat_at", orNull(w.LastHeartbeatAt)},
			})
		}
	})
}

// reclaimed is a claim that is taken back without counting a failure.
func (p *pass) reclaimed(w *watched, end Termination, why string) release {
	info := w.info(end)
	return release{event: "reclaimed", outcome: "reclaimed", why: why, unmoved: true, payload: object{
		{"stale_lock", orNull(w.ClaimLock)},
		{"worker_pid", orNull(w.WorkerPID)},
		{"claim_expires", orNull(w.ClaimExpires)},
		{"last_heartbeat_at", orNull(w.LastHeartbeatAt)},
		{"now", p.now},
		{"host_local", w.local},
		{"heartbeat_stale", p.heartbeatStale(w)},
	}.with(info[0], info[2], info[3], info[4])}
}

// detectStale takes tasks back that have been running for long without a sign of life. It isn't a failure.
func (p *pass) detectStale() error {
	limit := int64(p.Config.StaleTimeout / time.Second)
	if limit <= 0 {
		return nil
	}
	stale, _ := partition(p.watched, func(w *watched) bool {
		silent := w.LastHeartbeatAt == 0 || p.now-w.LastHeartbeatAt >= heartbeatStaleAfter
		return !w.settled && w.sight != Ended && w.sight != NeverStarted && silent && p.now-w.since > limit
	})
	return p.end(stale, "heartbeat_stale_worker_alive", func(w *watched, end Termination) error {
		var age any
		if w.LastHeartbeatAt != 0 {
			age = p.now - w.LastHeartbeatAt
		}
		_, err := p.release(w, release{event: "stale", outcome: "stale", why: "no sign of life", told: &p.res.Stale, payload: object{
			{"elapsed_seconds", p.now - w.since},
			{"last_heartbeat_at", orNull(w.LastHeartbeatAt)},
			{"heartbeat_age_seconds", age},
			{"timeout_seconds", limit},
			{"pid", orNull(w.WorkerPID)},
		}.with(w.info(end)...)})
		return err
	})
}

// Reclaim takes a task from its worker, which is terminated first. False: not running and not locked. It doesn't wait for a worker
// that won't die: an operator asked.
//
// A dispatcher at work beside it may see the end of the worker first, and give the task back, even to another worker. Then that was it:
// nothing happens to the new attempt.
func (d *Dispatcher) Reclaim(ctx context.Context, now time.Time, id, reason string) (ok bool, err error) {
	p, err := d.observe(ctx, now)
	if err != nil {
		return false, err
	}
	w := &watched{from: Ready}
	if i := slices.IndexFunc(p.watched, func(w *watched) bool { return w.ID == id }); i >= 0 {
		w = p.watched[i]
	}
	if w.ID == "" {
		task, err := d.Store.Task(ctx, id)
		if err != nil || task.ClaimLock == "" {
			if errors.Is(err, ErrNoTask) {
				err = nil
			}
			return false, err
		}
		w.Task, w.local = task, d.Store.hostLocal(task.ClaimLock)
	}
	end := p.terminate([]*watched{w})[0]
	why := "manual_reclaim"
	if reason != "" {
		why += ": " + reason
	}
	ok, err = p.release(w, release{
		event: "reclaimed", outcome: "reclaimed", why: why, set: ", consecutive_failures = 0",
		payload: object{{"manual", true}, {"reason", orNull(reason)}, {"prev_lock", orNull(w.ClaimLock)}}.with(w.info(end)...),
	})
	if ok || err != nil {
		return ok, err
	}
	outcome, err := first[string](ctx, d.Store.db, "SELECT COALESCE(outcome, '') FROM task_runs WHERE id = ?", w.CurrentRunID)
	return outcome == "reclaimed", err
}

// Reassign gives a task to another profile, after a reclaim if asked for. False: running, or no such task.
func (d *Dispatcher) Reassign(ctx context.Context, now time.Time, id, assignee string, reclaim bool, reason string) (bool, error) {
	if reclaim {
		if _, err := d.Reclaim(ctx, now, id, reason); err != nil {
			return false, err
		}
	}
	done, err := d.Store.Assign(ctx, now, id, assignee)
	if errors.Is(err, ErrRunning) {
		return false, nil
	}
	return done, err
}
