package kanban

import (
	"context"
	"time"
)

// Next is when a pass has work that no change of the board and no end of a worker announces. That is when a claim, a grace, a
// runtime or a cooldown runs out. Zero: never.
func (d *Dispatcher) Next(ctx context.Context, now time.Time) (time.Time, error) {
	p := &pass{Dispatcher: d, ctx: ctx, now: now.Unix(), res: &Result{}}
	if err := p.look(); err != nil {
		return time.Time{}, err
	}
	var next int64
	at := func(t int64) {
		if t = max(t, p.now+1); next == 0 || t < next {
			next = t
		}
	}
	interval := int64(d.Config.interval() / time.Second)
	if d.Backoff > 0 { // whatever else there is to wait for: it serves, and nothing may stand still
		some, err := first[bool](ctx, d.Store.db, "SELECT EXISTS (SELECT 1 FROM tasks WHERE status IN ('ready', 'review', 'running'))")
		if err != nil {
			return time.Time{}, err
		}
		if some {
			at(p.now + interval)
		}
	}
	for _, w := range p.watched {
		if w.ClaimExpires != 0 {
			at(w.ClaimExpires + 1)
		}
		if judged := w.judged(); judged != 0 {
			at(judged)
		}
		if w.WorkerPID != 0 && w.local && w.sight == Unknown && !w.gone {
			at(p.now + interval) // nothing tells when it ends
		}
		if w.WorkerPID != 0 && w.local && w.MaxRuntimeSeconds != nil {
			at(w.since + *w.MaxRuntimeSeconds)
		}
		if limit := int64(d.Config.StaleTimeout / time.Second); limit > 0 {
			silent := w.since + limit + 1
			if w.LastHeartbeatAt != 0 {
				silent = max(silent, w.LastHeartbeatAt+heartbeatStaleAfter)
			}
			at(silent)
		}
	}
	for _, w := range p.leaving {
		at(p.leaves(w))
	}
	if len(p.unanswered) > 0 {
		at(p.now + interval)
	}
	held, err := d.Store.held(ctx, p.now-activePRWindow)
	for _, h := range held {
		end := p.until(h)
		switch h.Outcome {
		case "":
			end = h.At + activePRWindow
		case "completed":
			end = h.At + recentSuccessWindow + 1
		}
		if end > p.now {
			at(end)
		}
	}
	if err != nil || next == 0 {
		return time.Time{}, err
	}
	return time.Unix(next, 0), nil
}

// held are the ends of attempts, and the pull requests with an empty outcome, that may hold back a waiting task: those after a time. It
// may tell too many: a pass that comes too early does nothing. A task that waits for no such reason is looked at now and then all the same.
func (s *Store) held(ctx context.Context, after int64) ([]attempt, error) {
	return read[attempt](ctx, s.db, `SELECT t.id, r.id, r.outcome, CAST(r.ended_at AS INTEGER), CAST(t.consecutive_failures AS INTEGER) FROM tasks t JOIN task_runs r ON r.task_id = t.id
			WHERE t.status IN ('ready', 'review') AND r.outcome IS NOT NULL AND r.ended_at > ?1
		UNION ALL
		SELECT t.id, 0, '', max(CAST(c.created_at AS INTEGER)), 0 FROM tasks t JOIN task_comments c ON c.task_id = t.id
			WHERE t.status = 'ready' AND c.created_at > ?1 AND instr(c.body, 'https://github.com/') > 0 GROUP BY t.id`, after)
}
