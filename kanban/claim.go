package kanban

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/samber/lo"
)

// claimSeconds returns how many seconds a new claim is valid: requested if it is set, otherwise
// HERMES_KANBAN_CLAIM_TTL_SECONDS, otherwise fifteen minutes.
func (s *Store) claimSeconds(requested time.Duration) int64 {
	if requested > 0 {
		return max(1, int64(requested/time.Second))
	}
	return envSeconds(s.opt.Env, "HERMES_KANBAN_CLAIM_TTL_SECONDS", 1, DefaultClaimTTL)
}

// envSeconds returns the number of seconds in an environment variable. If the variable is unset, invalid or below least, it
// returns the duration otherwise in seconds.
func envSeconds(env Env, name string, least int64, otherwise time.Duration) int64 {
	n, err := strconv.ParseInt(env.trimmed(name), 10, 64)
	if err != nil || n < least {
		return int64(otherwise / time.Second)
	}
	return n
}

// claimLock returns the value of the column claim_lock for one claim. It is the claimer's host:pid, which all writers of the
// board store, then a dot and the number of the run. With that number, each claim of a process has a different lock. So an update
// that names the lock can't change a later claim of the same process.
func claimLock(owner string, run int64) string { return owner + "." + strconv.FormatInt(run, 10) }

type claimOptions struct {
	ttl          time.Duration // Validity of the claim; 0: the default.
	from         Status
	profile      string          // Required assignee of the task; empty: any.
	beforeCommit func(run int64) // Called with the number of the new run before the claim is committed; nil: none.
}

// claim claims a task for a worker. It returns won false if another worker has the task, the task's status isn't o.from, or a
// parent isn't finished. If a parent isn't finished, a ready task goes back to todo. The returned task has no body.
func (s *Store) claim(ctx context.Context, now time.Time, id string, o claimOptions) (task Task, won bool, err error) {
	from := o.from
	expires := now.Unix() + s.claimSeconds(o.ttl)
	_, err = s.updateTask(ctx, now, id, func(t *writeTx, found Task) (err error) {
		task = found
		if task.Status != from || task.ClaimLock != "" || o.profile != "" && o.profile != task.Assignee {
			return errNothingToCommit
		}
		if from == Ready && t.hasUnfinishedParent(id) {
			t.exec("UPDATE tasks SET status = 'todo' WHERE id = ? AND status = 'ready'", id)
			t.addEvent(id, 0, "claim_rejected", jsonObject{{"reason", "parents_not_done"}})
			return nil
		}
		t.closeLeakedRun(task)
		run := t.insert(`INSERT INTO task_runs (task_id, profile, step_key, status, claim_expires, max_runtime_seconds, started_at)
			VALUES (?, ?, ?, 'running', ?, ?, ?)`,
			id, nilIfZero(task.Assignee), nilIfZero(task.CurrentStepKey), expires, task.MaxRuntimeSeconds, t.now)
		if o.beforeCommit != nil && t.err == nil {
			o.beforeCommit(run)
		}
		lock := claimLock(s.Claimer(), run)
		t.exec("UPDATE task_runs SET claim_lock = ? WHERE id = ?", lock, run)
		rows := t.exec(`UPDATE tasks SET status = 'running', claim_lock = ?1, claim_expires = ?2, started_at = COALESCE(started_at, ?3), current_run_id = ?7,
				workspace_path = COALESCE(NULLIF(workspace_path, ''), CASE WHEN workspace_kind = 'scratch' AND ?5 <> '' THEN ?5 || '/' || id END)
			WHERE id = ?4 AND status = ?6 AND claim_lock IS NULL`, lock, expires, t.now, id, s.paths.Workspaces, from, run)
		if rows == 0 {
			return errNothingToCommit
		}
		payload := jsonObject{{"lock", lock}, {"expires", expires}, {"run_id", run}}
		if from == Review {
			payload = payload.with(jsonMember{"source_status", "review"})
		}
		t.addEvent(id, run, "claimed", payload)
		won = true
		task, err = readTask(ctx, t.conn, id, tasksWithoutBody)
		return err
	})
	return task, won && err == nil, err
}

// HeartbeatClaim extends a claim, which it finds by its lock. The program that made the claim calls it while the work goes
// on. It returns false if the task isn't running or has another claim.
func (s *Store) HeartbeatClaim(ctx context.Context, now time.Time, id, lock string, ttl time.Duration) (ok bool, err error) {
	expires := now.Unix() + s.claimSeconds(ttl)
	err = s.write(ctx, now, func(t *writeTx) error {
		ok = t.extendClaim(id, lock, expires, "")
		return nil
	})
	return ok && err == nil, err
}

// extendClaim sets the expiry time of a claim, in the task and in its run. It returns false if the task has another lock, or if
// condition isn't met. condition is SQL that continues the WHERE clause, with the arguments args.
func (t *writeTx) extendClaim(id, lock string, expires int64, condition string, args ...any) bool {
	rows := t.exec("UPDATE tasks SET claim_expires = ? WHERE id = ? AND status = 'running' AND claim_lock = ?"+condition,
		append([]any{expires, id, lock}, args...)...)
	if rows > 0 {
		t.exec("UPDATE task_runs SET claim_expires = ? WHERE id = (SELECT current_run_id FROM tasks WHERE id = ?) AND ended_at IS NULL", expires, id)
	}
	return rows > 0
}

// HeartbeatWorker records that the worker of a task is alive. note is a text for the task's history, or empty. If run is set
// and isn't the task's current run, HeartbeatWorker changes nothing and returns false.
func (s *Store) HeartbeatWorker(ctx context.Context, now time.Time, id, note string, run int64) (bool, error) {
	return s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if task.Status != Running || run != 0 && run != task.CurrentRunID {
			return errNothingToCommit
		}
		t.exec("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", t.now, id)
		t.exec("UPDATE task_runs SET last_heartbeat_at = ? WHERE id = ? AND ended_at IS NULL", t.now, task.CurrentRunID)
		var payload jsonObject
		if note != "" {
			payload = jsonObject{{"note", note}}
		}
		t.addEvent(id, task.CurrentRunID, "heartbeat", payload)
		return nil
	})
}

// claimRelease says what to record when a running task loses its worker and returns to its status before the claim.
type claimRelease struct {
	event           string
	payload         jsonObject
	outcome         string     // Value for the columns outcome and status of the run.
	reason          string     // Value for the column error of the run.
	resultList      *[]string  // List in [TickResult] to which the task's ID is added; nil: none.
	countsAsFailure bool       // Whether the release counts as a failure of the task.
	limitOverride   int        // Failure limit for this release, in place of the dispatcher's; 0: none.
	gaveUpMembers   jsonObject // Additional members of the event gave_up, which is added at the failure limit.
	setColumns      string     // SQL that sets additional columns, with the arguments args.
	setArgs         []any
	unlessExtended  bool // Do nothing if a heartbeat has extended the claim since the pass read it.
}

// release takes a task from its worker and returns it to the status before the claim, ready or review. No other method of a
// boardPass changes the status of a running task. If another program has changed the run or the claim meanwhile, release changes
// nothing and returns false.
func (p *boardPass) release(w *observedTask, r claimRelease) (ok bool, err error) {
	blocked := false
	w.isHandled = true
	err = p.write(func(t *writeTx) {
		condition := " WHERE id = ? AND status = ? AND claim_lock IS ? AND current_run_id IS ?"
		args := append([]any{w.claimedFrom}, r.setArgs...)
		args = append(args, w.ID, w.Status, nilIfZero(w.ClaimLock), nilIfZero(w.CurrentRunID))
		if r.unlessExtended {
			condition, args = condition+" AND claim_expires IS ?", append(args, nilIfZero(w.ClaimExpires))
		}
		ok = t.exec(`UPDATE tasks SET status = CASE status WHEN 'running' THEN ? ELSE status END, claim_lock = NULL, claim_expires = NULL,
			worker_pid = NULL, current_run_id = NULL`+r.setColumns+condition, args...) > 0
		if !ok {
			return
		}
		limit, _ := p.failureLimitOf(w.Task, r)
		if blocked = r.countsAsFailure && w.ConsecutiveFailures+1 >= limit; blocked && r.event == "spawn_failed" {
			t.closeRun(w.CurrentRunID, runResult{outcome: "gave_up", err: r.reason})
		} else {
			t.closeRun(w.CurrentRunID, runResult{outcome: r.outcome, err: r.reason})
			t.addEvent(w.ID, w.CurrentRunID, r.event, r.payload)
		}
		if r.countsAsFailure {
			p.countFailure(t, w.Task, r, blocked)
		}
	})
	if ok = ok && err == nil; ok && blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, w.ID)
	}
	if ok && r.resultList != nil {
		*r.resultList = append(*r.resultList, w.ID)
		if w.liveness == Ended || w.WorkerPID != 0 {
			p.res.EndedRuns = append(p.res.EndedRuns, EndedRun{Task: w.ID, Profile: w.Assignee, Outcome: r.outcome, Exit: w.exit})
		}
	}
	return ok, err
}

// heartbeatStale reports whether the worker's last heartbeat is more than an hour old. A worker that has never sent a heartbeat
// is not stale.
func (p *boardPass) heartbeatStale(w *observedTask) bool {
	return w.LastHeartbeatAt != 0 && p.now-w.LastHeartbeatAt > heartbeatStaleAfter
}

// releaseStaleClaims handles expired claims. It extends the claim of a living worker, unless the worker's heartbeats have
// stopped. In all other cases it ends the worker and releases the claim.
func (p *boardPass) releaseStaleClaims() error {
	var over []*observedTask
	for _, w := range p.runningTasks {
		switch {
		case w.ClaimExpires == 0 || w.ClaimExpires >= p.now, w.liveness == Ended, w.liveness == NeverStarted && p.mayStart:
			continue // The claim is still valid, or detectCrashed handles the end of the worker.
		case w.isOnThisHost && w.WorkerPID != 0 && !p.workerEnded(w) && !p.heartbeatStale(w):
			if err := p.extendClaim(w); err != nil {
				return err
			}
		default:
			over = append(over, w)
		}
	}
	return p.endWorkers(over, "ttl_expired_worker_alive", func(w *observedTask, end Termination) error {
		ok, err := p.release(w, p.releaseForReclaim(w, end, "claim expired"))
		if ok {
			p.res.Reclaimed++
		}
		return err
	})
}

// endWorkers terminates the workers in list, and calls gone for each worker that has ended. A worker that survives SIGKILL
// keeps its task, because a second worker on the same task would do more harm. For such a worker, endWorkers extends the
// claim and adds an event whose reason is the parameter survives.
func (p *boardPass) endWorkers(list []*observedTask, survives string, gone func(*observedTask, Termination) error) error {
	var errs []error
	for i, end := range p.terminate(list) {
		w := list[i]
		if !w.mayStillRun(end) {
			errs = append(errs, gone(w, end))
			continue
		}
		w.isHandled = true
		expires := p.now + survivorRetrySeconds
		errs = append(errs, p.write(func(t *writeTx) {
			if t.extendClaim(w.ID, w.ClaimLock, expires, "") {
				t.addEvent(w.ID, w.CurrentRunID, "reclaim_deferred",
					jsonObject{{"reason", survives}, {"claim_lock", w.ClaimLock}, {"claim_expires_now", expires}}.with(w.terminationInfo(end)...))
			}
		}))
	}
	return errors.Join(errs...)
}

func (p *boardPass) extendClaim(w *observedTask) error {
	was := w.ClaimExpires
	w.ClaimExpires = p.now + p.Store.claimSeconds(0)
	return p.write(func(t *writeTx) {
		if t.extendClaim(w.ID, w.ClaimLock, w.ClaimExpires, " AND claim_expires = ?", was) {
			t.addEvent(w.ID, w.CurrentRunID, "claim_extended", jsonObject{
				{"reason", "pid_alive"},
				{"worker_pid", w.WorkerPID},
				{"claim_lock", w.ClaimLock},
				{"claim_expires_was", was},
				{"claim_expires_now", w.ClaimExpires},
				{"last_heartbeat_at", nilIfZero(w.LastHeartbeatAt)},
			})
		}
	})
}

// releaseForReclaim returns the release for a task that is taken from its worker. It does not count as a failure of the task.
func (p *boardPass) releaseForReclaim(w *observedTask, end Termination, why string) claimRelease {
	return claimRelease{event: "reclaimed", outcome: "reclaimed", reason: why, unlessExtended: true, payload: jsonObject{
		{"stale_lock", nilIfZero(w.ClaimLock)},
		{"worker_pid", nilIfZero(w.WorkerPID)},
		{"claim_expires", nilIfZero(w.ClaimExpires)},
		{"last_heartbeat_at", nilIfZero(w.LastHeartbeatAt)},
		{"now", p.now},
		{"heartbeat_stale", p.heartbeatStale(w)},
	}.with(w.terminationInfo(end)...)}
}

// detectStale ends workers that have run for longer than [Config.StaleTimeout] and have sent no heartbeat in the last hour.
// It releases their tasks and counts no failures.
func (p *boardPass) detectStale() error {
	limit := int64(p.Config.StaleTimeout / time.Second)
	if limit <= 0 {
		return nil
	}
	stale := lo.Filter(p.runningTasks, func(w *observedTask, _ int) bool {
		silent := w.LastHeartbeatAt == 0 || p.now-w.LastHeartbeatAt >= heartbeatStaleAfter
		return !w.isHandled && w.liveness != Ended && w.liveness != NeverStarted && silent && p.now-w.since > limit
	})
	return p.endWorkers(stale, "heartbeat_stale_worker_alive", func(w *observedTask, end Termination) error {
		_, err := p.release(w, claimRelease{event: "stale", outcome: "stale", reason: "no sign of life", resultList: &p.res.Stale, payload: jsonObject{
			{"elapsed_seconds", p.now - w.since},
			{"last_heartbeat_at", nilIfZero(w.LastHeartbeatAt)},
			{"heartbeat_age_seconds", lo.Ternary[any](w.LastHeartbeatAt == 0, nil, p.now-w.LastHeartbeatAt)},
			{"timeout_seconds", limit},
			{"pid", nilIfZero(w.WorkerPID)},
		}.with(w.terminationInfo(end)...)})
		return err
	})
}

// Reclaim terminates the worker of a task and releases the task, on request of an operator. It releases the task even if the
// worker can't be killed. It returns false if the task is neither running nor claimed.
//
// A dispatcher that runs at the same time may see the end of the worker first, release the task and start a new attempt. Reclaim
// does not touch that new attempt.
func (d *Dispatcher) Reclaim(ctx context.Context, now time.Time, id, reason string) (ok bool, err error) {
	p, err := d.observe(ctx, now)
	if err != nil {
		return false, err
	}
	w, running := lo.Find(p.runningTasks, func(w *observedTask) bool { return w.ID == id })
	if !running {
		task, err := d.Store.Task(ctx, id)
		switch {
		case errors.Is(err, ErrNoTask):
			return false, nil
		case err != nil || task.ClaimLock == "":
			return false, err
		}
		w = &observedTask{Task: task, claimedFrom: Ready, isOnThisHost: d.Store.isClaimOfThisHost(task.ClaimLock)}
	}
	end := p.terminate([]*observedTask{w})[0]
	why := "manual_reclaim"
	if reason != "" {
		why += ": " + reason
	}
	ok, err = p.release(w, claimRelease{
		event: "reclaimed", outcome: "reclaimed", reason: why, setColumns: ", consecutive_failures = 0",
		payload: jsonObject{{"manual", true}, {"reason", nilIfZero(reason)}, {"prev_lock", nilIfZero(w.ClaimLock)}}.with(w.terminationInfo(end)...),
	})
	if ok || err != nil {
		return ok, err
	}
	outcome, err := queryFirst[string](ctx, d.Store.db, "SELECT outcome FROM task_runs WHERE id = ?", w.CurrentRunID)
	return outcome == "reclaimed", err
}

// Reassign gives a task to another profile. If reclaim is true, it first reclaims the task from its worker. It returns false if
// the task is running or does not exist.
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
