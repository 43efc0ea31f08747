package kanban

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"
)

// each calls do for every row of a query.
func each(ctx context.Context, q querier, do func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// column1 reads a query of one column.
func column1[T any](ctx context.Context, q querier, query string, args ...any) (list []T, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var v T
		if err := r.Scan(&v); err != nil {
			return err
		}
		list = append(list, v)
		return nil
	}, query, args...)
	return list, err
}

// taskColumns are the columns of a task but for the body, in whose place stands another column or a constant: no operation needs the
// body, and nothing limits its size.
const taskColumns = `, COALESCE(assignee, ''), status, COALESCE(priority, 0), COALESCE(created_by, ''), created_at,
	COALESCE(started_at, 0), COALESCE(completed_at, 0), workspace_kind, COALESCE(workspace_path, ''), COALESCE(branch_name, ''),
	COALESCE(claim_lock, ''), COALESCE(claim_expires, 0), COALESCE(tenant, ''), COALESCE(result, ''), COALESCE(idempotency_key, ''),
	consecutive_failures, COALESCE(worker_pid, 0), COALESCE(last_failure_error, ''), max_runtime_seconds, COALESCE(last_heartbeat_at, 0),
	COALESCE(current_run_id, 0), COALESCE(workflow_template_id, ''), COALESCE(current_step_key, ''), COALESCE(skills, ''),
	COALESCE(model_override, ''), max_retries, goal_mode, goal_max_turns, COALESCE(session_id, ''), COALESCE(due_at, 0)`

func scanTask(r interface{ Scan(...any) error }) (t Task, err error) {
	var skills string
	err = r.Scan(&t.ID, &t.Title, &t.Body, &t.Assignee, &t.Status, &t.Priority, &t.CreatedBy, &t.CreatedAt,
		&t.StartedAt, &t.CompletedAt, &t.WorkspaceKind, &t.WorkspacePath, &t.Branch,
		&t.ClaimLock, &t.ClaimExpires, &t.Tenant, &t.Result, &t.IdempotencyKey,
		&t.ConsecutiveFailures, &t.WorkerPID, &t.LastFailureError, &t.MaxRuntimeSeconds, &t.LastHeartbeatAt,
		&t.CurrentRunID, &t.WorkflowTemplateID, &t.CurrentStepKey, &skills,
		&t.ModelOverride, &t.MaxRetries, &t.GoalMode, &t.GoalMaxTurns, &t.SessionID, &t.DueAt)
	t.Skills = stringList(skills)
	return t, err
}

const (
	withBody    = "COALESCE(body, '')"
	withoutBody = "''"
)

// taskByID reads a task without its body.
func taskByID(ctx context.Context, q querier, id string) (Task, error) {
	return readTask(ctx, q, id, withoutBody)
}

func readTask(ctx context.Context, q querier, id, body string) (Task, error) {
	t, err := scanTask(q.QueryRowContext(ctx, "SELECT id, title, "+body+taskColumns+" FROM tasks WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return t, ErrNoTask
	}
	return t, err
}

func tasksWhere(ctx context.Context, q querier, where string, args ...any) (list []Task, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		t, err := scanTask(r)
		list = append(list, t)
		return err
	}, "SELECT id, title, "+withBody+taskColumns+" FROM tasks "+where, args...)
	return list, err
}

// Task reads one task, or returns [ErrNoTask].
func (s *Store) Task(ctx context.Context, id string) (Task, error) {
	return readTask(ctx, s.db, id, withBody)
}

// Filter selects tasks. Empty fields select everything but archived tasks.
type Filter struct {
	Status          Status
	Assignee        string
	Tenant          string
	SessionID       string
	IncludeArchived bool
	Sort            string // empty or priority: the highest first, then the oldest
	Limit           int
}

// orders are the values of [Filter.Sort].
var orders = map[string]string{
	"": "", "priority": "", "created": "created_at, ", "due": "due_at IS NULL, due_at, ", "status": "status, ", "assignee": "assignee, ", "title": "title, ",
}

// Tasks lists tasks, the highest priority first, then the oldest.
func (s *Store) Tasks(ctx context.Context, f Filter) ([]Task, error) {
	where, args := "WHERE 1", []any(nil)
	for _, c := range [][2]string{{"status", string(f.Status)}, {"assignee", f.Assignee}, {"tenant", f.Tenant}, {"session_id", f.SessionID}} {
		if c[1] != "" {
			where, args = where+" AND "+c[0]+" = ?", append(args, c[1])
		}
	}
	if f.Status == "" && !f.IncludeArchived {
		where += " AND status <> 'archived'"
	}
	order, known := orders[f.Sort]
	if !known {
		return nil, refuse("cannot sort by %q: there are %s", f.Sort, strings.Join(slices.Sorted(maps.Keys(orders))[1:], ", "))
	}
	where += " ORDER BY " + order + "priority DESC, created_at, id"
	if f.Limit > 0 {
		where, args = where+" LIMIT ?", append(args, f.Limit)
	}
	return tasksWhere(ctx, s.db, where, args...)
}

const runColumns = `id, task_id, COALESCE(profile, ''), COALESCE(step_key, ''), status, COALESCE(claim_lock, ''), COALESCE(claim_expires, 0),
	COALESCE(worker_pid, 0), max_runtime_seconds, COALESCE(last_heartbeat_at, 0), started_at, COALESCE(ended_at, 0), COALESCE(outcome, ''),
	COALESCE(summary, ''), COALESCE(metadata, ''), COALESCE(error, '')`

// Runs are the attempts at a task, the first one first.
func (s *Store) Runs(ctx context.Context, task string) ([]Run, error) {
	return s.runs(ctx, "WHERE task_id = ? ORDER BY id", task)
}

// LastRuns are the attempts at any task that began last, the newest first.
func (s *Store) LastRuns(ctx context.Context, most int) ([]Run, error) {
	return s.runs(ctx, "ORDER BY id DESC LIMIT ?", most)
}

func (s *Store) runs(ctx context.Context, which string, args ...any) (list []Run, err error) {
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var n Run
		err := r.Scan(&n.ID, &n.TaskID, &n.Profile, &n.StepKey, &n.Status, &n.ClaimLock, &n.ClaimExpires, &n.WorkerPID, &n.MaxRuntimeSeconds,
			&n.LastHeartbeatAt, &n.StartedAt, &n.EndedAt, &n.Outcome, &n.Summary, &n.Metadata, &n.Error)
		list = append(list, n)
		return err
	}, "SELECT "+runColumns+" FROM task_runs "+which, args...)
	return list, err
}

// Events are those after a cursor, of one task or of all (empty), at most limit (0: all).
func (s *Store) Events(ctx context.Context, task string, after int64, limit int) (list []Event, err error) {
	if limit <= 0 {
		limit = -1
	}
	where, args := "WHERE id > ?", []any{after, limit}
	if task != "" {
		where, args = "WHERE task_id = ? AND id > ?", []any{task, after, limit}
	}
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var e Event
		err := r.Scan(&e.ID, &e.TaskID, &e.RunID, &e.Kind, &e.Payload, &e.CreatedAt)
		list = append(list, e)
		return err
	}, "SELECT id, task_id, COALESCE(run_id, 0), kind, COALESCE(payload, ''), created_at FROM task_events "+where+" ORDER BY id LIMIT ?", args...)
	return list, err
}

// Comments are the remarks on a task, the oldest first.
func (s *Store) Comments(ctx context.Context, task string) (list []Comment, err error) {
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var c Comment
		err := r.Scan(&c.ID, &c.TaskID, &c.Author, &c.Body, &c.CreatedAt)
		list = append(list, c)
		return err
	}, "SELECT id, task_id, author, body, created_at FROM task_comments WHERE task_id = ? ORDER BY created_at, id", task)
	return list, err
}

// Links are the tasks that a task waits for, and those that wait for it.
func (s *Store) Links(ctx context.Context, task string) (parents, children []string, err error) {
	parents, err = column1[string](ctx, s.db, "SELECT parent_id FROM task_links WHERE child_id = ? ORDER BY parent_id", task)
	if err == nil {
		children, err = column1[string](ctx, s.db, "SELECT child_id FROM task_links WHERE parent_id = ? ORDER BY child_id", task)
	}
	return parents, children, err
}

// Stats is how the board stands.
type Stats struct {
	ByStatus   map[Status]int            `json:"by_status"`
	ByAssignee map[string]map[Status]int `json:"by_assignee"`
	OldestAge  int64                     `json:"oldest_ready_age_seconds"` // of the oldest ready task; 0 without one
	Now        int64                     `json:"now"`
}

// Stats counts the board's tasks.
func (s *Store) Stats(ctx context.Context, now time.Time) (Stats, error) {
	st := Stats{Now: now.Unix(), ByStatus: make(map[Status]int), ByAssignee: make(map[string]map[Status]int)}
	err := each(ctx, s.db, func(r *sql.Rows) error {
		var (
			status Status
			who    string
			n      int
		)
		if err := r.Scan(&status, &who, &n); err != nil {
			return err
		}
		st.ByStatus[status] += n
		if who != "" && status != Archived {
			if st.ByAssignee[who] == nil {
				st.ByAssignee[who] = make(map[Status]int)
			}
			st.ByAssignee[who][status] += n
		}
		return nil
	}, "SELECT status, COALESCE(assignee, ''), count(*) FROM tasks GROUP BY status, assignee")
	if err != nil {
		return st, err
	}
	var oldest int64
	err = s.db.QueryRowContext(ctx, "SELECT COALESCE(min(created_at), 0) FROM tasks WHERE status = 'ready'").Scan(&oldest)
	if oldest > 0 {
		st.OldestAge = max(0, now.Unix()-oldest)
	}
	return st, err
}
