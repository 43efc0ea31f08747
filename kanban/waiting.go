package kanban

import (
	"context"
	"database/sql"
)

// waiting are the unclaimed tasks in a status in the order in which they are started.
func (s *Store) waiting(ctx context.Context, status Status) (list []row, err error) {
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var one row
		err := r.Scan(&one.id, &one.assignee, &one.again)
		list = append(list, one)
		return err
	}, `SELECT id, COALESCE(assignee, ''), started_at IS NOT NULL FROM tasks WHERE status = ? AND claim_lock IS NULL ORDER BY priority DESC, created_at, rowid`, status)
	return list, err
}

// atWork is who works on the running tasks, by attempt; a task without an attempt has a negative number.
func (s *Store) atWork(ctx context.Context) (map[int64]string, error) {
	who := make(map[int64]string)
	err := each(ctx, s.db, func(r *sql.Rows) error {
		var run int64
		var name string
		err := r.Scan(&run, &name)
		who[run] = name
		return err
	}, "SELECT COALESCE(NULLIF(CAST(current_run_id AS INTEGER), 0), -rowid), COALESCE(assignee, '') FROM tasks WHERE status = 'running'")
	return who, err
}
