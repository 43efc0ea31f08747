package kanban

import (
	"context"
	"time"
)

// promotable is a condition on tasks: the promotion pass would make it ready. Its parameter is the failure limit.
//
// A block is sticky if `blocked` is the latest of `blocked` and `unblocked` in the history. A block by the failure limit isn't,
// so that the task goes on when the limit is raised.
const promotable = `(status = 'todo' OR status = 'blocked'
		AND consecutive_failures < COALESCE(max_retries, ?)
		AND COALESCE((SELECT e.kind FROM task_events e WHERE e.task_id = tasks.id AND e.kind IN ('blocked', 'unblocked')
			ORDER BY e.id DESC LIMIT 1), '') <> 'blocked')
	AND NOT ` + unfinishedParents

// RecomputeReady is the promotion pass: todo and blocked tasks that nothing holds back any more become ready.
func (s *Store) RecomputeReady(ctx context.Context, now time.Time, failureLimit int) (promoted int, err error) {
	ids, err := read[string](ctx, s.db, "SELECT id FROM tasks WHERE status IN ('todo', 'blocked') AND "+promotable+" ORDER BY rowid", failureLimit)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	err = s.write(ctx, now, func(t *tx) error {
		promoted = t.promote(ids, failureLimit)
		return nil
	})
	return promoted, err
}

// promote makes the tasks ready whose conditions still hold.
func (t *tx) promote(ids []string, failureLimit int) (promoted int) {
	for _, id := range ids {
		if t.exec("UPDATE tasks SET status = 'ready' WHERE id = ? AND "+promotable, id, failureLimit) > 0 {
			t.event(id, 0, "promoted", nil)
			promoted++
		}
	}
	return promoted
}

// promoteChildren is the promotion pass for those that waited for one task.
func (t *tx) promoteChildren(parent string) {
	t.promote(all[string](t, "SELECT child_id FROM task_links WHERE parent_id = ?", parent), DefaultFailureLimit)
}

// Health is whether there is work that a dispatcher could start.
type Health struct {
	SpawnableReady, SpawnableReview bool
}

// Health answers the health questions: is a row ready, or in review, unclaimed, for a profile that exists?
func (s *Store) Health(ctx context.Context, profiles Profiles) (h Health, err error) {
	lanes, err := read[struct {
		Status Status
		Who    string
	}](ctx, s.db, `SELECT DISTINCT status, assignee FROM tasks WHERE status IN ('ready', 'review') AND claim_lock IS NULL AND COALESCE(assignee, '') <> ''`)
	for _, l := range lanes {
		ok, failed := profiles.Exists(l.Who)
		if ok && failed == nil {
			h.SpawnableReady = h.SpawnableReady || l.Status == Ready
			h.SpawnableReview = h.SpawnableReview || l.Status == Review
		}
	}
	return h, err
}
