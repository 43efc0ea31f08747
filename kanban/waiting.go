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

// runningByProfile counts running tasks; those of nobody are under the empty name.
func (s *Store) runningByProfile(ctx context.Context) (map[string]int, error) {
	counts := make(map[string]int)
	err := each(ctx, s.db, func(r *sql.Rows) error {
		var who string
		var n int
		err := r.Scan(&who, &n)
		counts[who] = n
		return err
	}, "SELECT COALESCE(assignee, ''), count(*) FROM tasks WHERE status = 'running' GROUP BY assignee")
	return counts, err
}
