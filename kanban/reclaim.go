package kanban

import (
	"context"
	"errors"
	"time"
)

// release is how a running task goes back to where it waits.
type release struct {
	event   string
	payload object
	outcome string // of the run, and its status
	why     string // its error
	fault   *fault // counts against the task; nil: it is not the task's fault
	set     string // more columns
	args    []any
	unmoved bool // only while the claim ends when it did: a heartbeat in between saves it
}

// release gives a task back: to ready, or to review where it came from. It is the only way out of running, apart from the ways of the worker and of
// operators. The condition is the run and its claim as they were seen, so that nothing happens to a claim that has changed hands.
func (p *pass) release(w *watched, r release) (ok bool, err error) {
	blocked := false
	w.settled = true
	err = p.write(func(t *tx) error {
		condition := " WHERE id = ? AND status = ? AND claim_lock IS ? AND current_run_id IS ?"
		args := append([]any{w.home()}, r.args...)
		args = append(args, w.ID, w.Status, orNull(w.ClaimLock), orNull(w.CurrentRunID))
		if r.unmoved {
			condition, args = condition+" AND claim_expires IS ?", append(args, orNull(w.ClaimExpires))
		}
		ok = t.exec(`UPDATE tasks SET status = CASE status WHEN 'running' THEN ? ELSE status END, claim_lock = NULL, claim_expires = NULL,
			worker_pid = NULL, current_run_id = NULL`+r.set+condition, args...) > 0
		if !ok {
			return nil
		}
		blocked = r.fault != nil && r.fault.blocks(w.Task)
		if blocked && r.event == "spawn_failed" {
			r.event, r.outcome = "", "gave_up"
		}
		t.closeRun(w.CurrentRunID, as(r.outcome, r.why))
		if r.event != "" {
			t.event(w.ID, w.CurrentRunID, r.event, r.payload)
		}
		if r.fault != nil {
			t.fail(w.Task, r.why, *r.fault, blocked)
		}
		return nil
	})
	if ok = ok && err == nil; ok && blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, w.ID)
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
		ok, err := p.reclaim(w, end, "claim expired")
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
		errs = append(errs, p.write(func(t *tx) error {
			if t.extend(w.ID, w.ClaimLock, expires, "") {
				t.event(w.ID, w.CurrentRunID, "reclaim_deferred",
					object{{"reason", survives}, {"claim_lock", w.ClaimLock}, {"claim_expires_now", expires}}.with(w.info(end)...))
			}
			return nil
		}))
	}
	return errors.Join(errs...)
}

func (p *pass) extend(w *watched) error {
	was := w.ClaimExpires
	w.ClaimExpires = p.now + p.Store.ttl(0)
	return p.write(func(t *tx) error {
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
		return nil
	})
}

// reclaim takes a claim back without counting a failure.
func (p *pass) reclaim(w *watched, end Termination, why string) (bool, error) {
	info := w.info(end)
	return p.release(w, release{event: "reclaimed", outcome: "reclaimed", why: why, unmoved: true, payload: object{
		{"stale_lock", orNull(w.ClaimLock)},
		{"worker_pid", orNull(w.WorkerPID)},
		{"claim_expires", orNull(w.ClaimExpires)},
		{"last_heartbeat_at", orNull(w.LastHeartbeatAt)},
		{"now", p.now},
		{"host_local", w.local},
		{"heartbeat_stale", p.heartbeatStale(w)},
	}.with(info[0], info[2], info[3], info[4])})
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
		if !w.settled && w.sight != Ended && w.sight != NeverStarted && silent && p.now-w.since > limit {
			stale = append(stale, w)
		}
	}
	return p.end(stale, "heartbeat_stale_worker_alive", func(w *watched, end Termination) error {
		var age any
		if w.LastHeartbeatAt != 0 {
			age = p.now - w.LastHeartbeatAt
		}
		ok, err := p.release(w, release{event: "stale", outcome: "stale", why: "no sign of life", payload: object{
			{"elapsed_seconds", p.now - w.since},
			{"last_heartbeat_at", orNull(w.LastHeartbeatAt)},
			{"heartbeat_age_seconds", age},
			{"timeout_seconds", limit},
			{"pid", orNull(w.WorkerPID)},
		}.with(w.info(end)...)})
		if ok {
			p.res.Stale = append(p.res.Stale, w.ID)
		}
		return err
	})
}

// Reclaim takes a task from its worker, which is terminated first. False: not running and not locked. It doesn't wait for a worker
// that won't die: an operator asked.
//
// A dispatcher at work beside it may see the end of the worker first, and give the task back, even to another worker. Then that was it:
// nothing happens to the new attempt.
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
