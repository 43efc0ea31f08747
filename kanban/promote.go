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
