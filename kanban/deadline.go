package kanban

import (
	"context"
	"database/sql"
	"time"
)

// Next is when a pass has something to do that neither a change of the board nor the end of a worker announces: a claim, a grace,
// a runtime or a cooldown runs out. Zero: never.
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
	held, err := d.Store.held(ctx, p.now-max(recentSuccessWindow, p.cooldown()), p.now-activePRWindow)
	for _, h := range held {
		end := h.since + activePRWindow
		switch h.why {
		case "rate_limited":
			end = h.since + p.cooldown()
		case "completed":
			end = h.since + recentSuccessWindow + 1
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

// hold is a reason that holds a waiting task back for a time.
type hold struct {
	why   string
	since int64
}

// held are the reasons that began after a time. It may tell too many: a pass that comes too early does nothing.
func (s *Store) held(ctx context.Context, runs, comments int64) (list []hold, err error) {
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var h hold
		err := r.Scan(&h.why, &h.since)
		list = append(list, h)
		return err
	}, `SELECT r.outcome, max(r.ended_at) FROM tasks t JOIN task_runs r ON r.task_id = t.id
			WHERE t.status IN ('ready', 'review') AND r.outcome IN ('rate_limited', 'completed') AND r.ended_at > ? GROUP BY t.id, r.outcome
		UNION ALL
		SELECT '', max(c.created_at) FROM tasks t JOIN task_comments c ON c.task_id = t.id
			WHERE t.status = 'ready' AND c.created_at > ? AND instr(c.body, 'https://github.com/') > 0 GROUP BY t.id`, runs, comments)
	return list, err
}
