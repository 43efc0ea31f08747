package kanban

import (
	"context"
	"errors"
	"time"
)

// release gives a running task back: to ready, or to review where it came from. The condition is the claim as it was seen, so that
// one that has changed hands is left alone.
func (t *tx) release(w *watched) (bool, error) { return t.releaseWith(w, "", nil) }

// releaseWith is release that sets more columns.
func (t *tx) releaseWith(w *watched, more string, args []any) (bool, error) {
	n, err := t.exec(`UPDATE tasks SET status = ?, claim_lock = NULL, claim_expires = NULL, worker_pid = NULL, current_run_id = NULL`+more+
		` WHERE id = ? AND status = 'running' AND claim_lock IS ? AND worker_pid IS ? AND current_run_id IS ?`,
		append(append([]any{w.home()}, args...), w.ID, orNull(w.ClaimLock), timeOrNull(int64(w.WorkerPID)), timeOrNull(w.CurrentRunID))...)
	return n > 0, err
}

// expiresStill says whether the end of a claim is the one that was seen: a heartbeat in between saves it.
func (t *tx) expiresStill(w *watched) (still bool, err error) {
	err = t.QueryRowContext(t.ctx, "SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ? AND claim_expires IS ?)", w.ID, timeOrNull(w.ClaimExpires)).Scan(&still)
	return still, err
}

// heartbeatStale says whether the worker was heard of, but not for an hour. One that was never heard of isn't stale.
func (p *pass) heartbeatStale(w *watched) bool {
	return w.LastHeartbeatAt != 0 && p.now-w.LastHeartbeatAt > heartbeatStaleAfter
}

// releaseStaleClaims extends the claims of workers that are alive and takes those of the others whose time is over.
func (p *pass) releaseStaleClaims() error {
	var over []*watched
	for _, w := range p.watched {
		switch {
		case w.ClaimExpires == 0 || w.ClaimExpires >= p.now, w.sight == Ended:
			continue // how it ended counts for more than when
		case w.local && w.WorkerPID != 0 && !p.dead(w) && !p.heartbeatStale(w):
			if err := p.extend(w); err != nil {
				return err
			}
		default:
			over = append(over, w)
		}
	}
	for i, end := range p.terminate(over) {
		w := over[i]
		if w.survived(end) {
			if err := p.deferRelease(w, end, "ttl_expired_worker_alive"); err != nil {
				return err
			}
			continue
		}
		ok, err := p.reclaim(w, end, "claim expired")
		if err != nil {
			return err
		}
		if ok {
			p.res.Reclaimed++
		}
	}
	return nil
}

func (p *pass) extend(w *watched) error {
	expires := p.now + p.Store.ttl(0)
	err := p.write(func(t *tx) error {
		ok, err := t.extend(w.ID, w.ClaimLock, expires, " AND claim_expires = ?", w.ClaimExpires)
		if err != nil || !ok {
			return err
		}
		return t.event(w.ID, w.CurrentRunID, evClaimExtended, object{
			{"reason", "pid_alive"},
			{"worker_pid", w.WorkerPID},
			{"claim_lock", w.ClaimLock},
			{"claim_expires_was", w.ClaimExpires},
			{"claim_expires_now", expires},
			{"last_heartbeat_at", timeOrNull(w.LastHeartbeatAt)},
		})
	})
	w.ClaimExpires = expires
	return err
}

// deferRelease keeps the claim of a worker that couldn't be ended: another one on the same task would be worse.
func (p *pass) deferRelease(w *watched, end Termination, reason string) error {
	w.settled = true
	expires := p.now + survivorDefers
	return p.write(func(t *tx) error {
		ok, err := t.extend(w.ID, w.ClaimLock, expires, "")
		if err != nil || !ok {
			return err
		}
		return t.event(w.ID, w.CurrentRunID, evReclaimDeferred,
			object{{"reason", reason}, {"claim_lock", w.ClaimLock}, {"claim_expires_now", expires}}.with(w.info(end)...))
	})
}

// reclaim takes a claim back without counting a failure.
func (p *pass) reclaim(w *watched, end Termination, why string) (ok bool, err error) {
	w.settled = true
	err = p.write(func(t *tx) error {
		if ok, err = t.expiresStill(w); err != nil || !ok {
			return err
		}
		if ok, err = t.release(w); err != nil || !ok {
			return err
		}
		if err := t.closeRun(w.CurrentRunID, as("reclaimed", why)); err != nil {
			return err
		}
		return t.event(w.ID, w.CurrentRunID, evReclaimed, object{
			{"stale_lock", orNull(w.ClaimLock)},
			{"worker_pid", timeOrNull(int64(w.WorkerPID))},
			{"claim_expires", timeOrNull(w.ClaimExpires)},
			{"last_heartbeat_at", timeOrNull(w.LastHeartbeatAt)},
			{"now", p.now},
			{"host_local", w.local},
			{"heartbeat_stale", p.heartbeatStale(w)},
		}.with(w.info(end)[0], w.info(end)[2], w.info(end)[3], w.info(end)[4]))
	})
	return ok && err == nil, err
}

// detectStale takes tasks back that have been running for long without a sign of life. It isn't a failure.
func (p *pass) detectStale() error {
	limit := int64(p.Config.StaleTimeout / time.Second)
	if limit <= 0 {
		return nil
	}
	var stale []*watched
	for _, w := range p.watched {
		silent := w.LastHeartbeatAt == 0 || p.now-w.LastHeartbeatAt >= heartbeatStaleAfter
		if !w.settled && w.sight != Ended && silent && p.now-w.since > limit {
			stale = append(stale, w)
		}
	}
	for i, end := range p.terminate(stale) {
		w := stale[i]
		if w.survived(end) {
			if err := p.deferRelease(w, end, "heartbeat_stale_worker_alive"); err != nil {
				return err
			}
			continue
		}
		w.settled = true
		err := p.write(func(t *tx) error {
			ok, err := t.release(w)
			if err != nil || !ok {
				return err
			}
			elapsed := p.now - w.since
			if err := t.closeRun(w.CurrentRunID, as("stale", "no sign of life")); err != nil {
				return err
			}
			var age any
			if w.LastHeartbeatAt != 0 {
				age = p.now - w.LastHeartbeatAt
			}
			p.res.Stale = append(p.res.Stale, w.ID)
			return t.event(w.ID, w.CurrentRunID, evStale, object{
				{"elapsed_seconds", elapsed},
				{"last_heartbeat_at", timeOrNull(w.LastHeartbeatAt)},
				{"heartbeat_age_seconds", age},
				{"timeout_seconds", limit},
				{"pid", timeOrNull(int64(w.WorkerPID))},
			}.with(w.info(end)...))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Reclaim takes a task from its worker, which is terminated first. False: not running and not locked. It doesn't wait for a worker
// that won't die: an operator asked.
func (d *Dispatcher) Reclaim(ctx context.Context, now time.Time, id, reason string) (ok bool, err error) {
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix(), res: &Result{}}
	if err := p.look(); err != nil {
		return false, err
	}
	w := &watched{}
	for _, running := range p.watched {
		if running.ID == id {
			w = running
		}
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
	err = p.write(func(t *tx) error {
		n, err := t.exec(`UPDATE tasks SET status = CASE status WHEN 'running' THEN ? ELSE status END, claim_lock = NULL, claim_expires = NULL,
			worker_pid = NULL, current_run_id = NULL, consecutive_failures = 0 WHERE id = ? AND claim_lock IS ? AND status = ?`,
			w.home(), id, orNull(w.ClaimLock), w.Status)
		if err != nil || n == 0 {
			return err
		}
		why := "manual_reclaim"
		if reason != "" {
			why += ": " + reason
		}
		if err := t.closeRun(w.CurrentRunID, as("reclaimed", why)); err != nil {
			return err
		}
		ok = true
		return t.event(id, w.CurrentRunID, evReclaimed,
			object{{"manual", true}, {"reason", orNull(reason)}, {"prev_lock", orNull(w.ClaimLock)}}.with(w.info(end)...))
	})
	return ok && err == nil, err
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
