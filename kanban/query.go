package kanban

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// querier is what reads: the connection inside a transaction or outside.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// read returns the rows of a query. T is a struct with a field for each column, in order, or the type of the only column. A field that is
// a struct has several columns.
func read[T any](ctx context.Context, q querier, query string, args ...any) (list []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var row T
		if err := rows.Scan(fields(reflect.ValueOf(&row).Elem())...); err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

// fields are the places that a row is read into.
func fields(row reflect.Value) (places []any) {
	if row.Kind() != reflect.Struct {
		place := row.Addr().Interface()
		if words, is := place.(*[]string); is {
			place = (*jsonList)(words)
		}
		return []any{place}
	}
	for _, field := range row.Fields() {
		places = append(places, fields(field)...)
	}
	return places
}

// first returns the first row of a query; the zero value where there is none.
func first[T any](ctx context.Context, q querier, query string, args ...any) (row T, err error) {
	rows, err := read[T](ctx, q, query, args...)
	if len(rows) > 0 {
		row = rows[0]
	}
	return row, err
}

// load reads rows of a table. The fields of T are its columns in order.
func load[T any](ctx context.Context, q querier, t table, rest string, args ...any) ([]T, error) {
	return read[T](ctx, q, "SELECT "+selection[T](t)+" FROM "+t.name+" "+rest, args...)
}

// selection are the columns of a table as a query selects them for the fields of T. Null is the zero value where the field is no pointer. A
// value of another type than the column's, which SQLite lets any writer store, is read as SQLite converts it, without an error.
func selection[T any](t table) string {
	names := make([]string, len(t.columns))
	for i, c := range t.columns {
		switch kind := reflect.TypeFor[T]().Field(i).Type.Kind(); {
		case kind == reflect.Pointer:
			names[i] = "CAST(" + c.name + " AS INTEGER)"
		case kind == reflect.Bool:
			names[i] = whole(c.name) + " <> 0"
		case strings.HasPrefix(c.def, text):
			names[i] = "COALESCE(CAST(" + c.name + " AS TEXT), '')"
		default:
			names[i] = whole(c.name)
		}
	}
	return strings.Join(names, ", ")
}

// whole is a column as a whole number, whatever a row has in it.
func whole(column string) string { return "COALESCE(CAST(" + column + " AS INTEGER), 0)" }

// Misfits names the rows of tasks and attempts that have something else in a column of numbers.
func (s *Store) Misfits(ctx context.Context) ([]string, error) {
	var query []string
	for _, t := range []table{tasksTable, runsTable} {
		for _, c := range t.columns {
			if !strings.HasPrefix(c.def, integer) || c.def == serial {
				continue
			}
			query = append(query, fmt.Sprintf("SELECT %[1]s.id || ' (%[1]s.%[2]s)' FROM %[1]s WHERE typeof(%[2]s) NOT IN ('integer', 'null')", t.name, c.name))
		}
	}
	return read[string](ctx, s.db, strings.Join(query, " UNION ALL "))
}

// jsonList is a column with a JSON array of strings; anything else is an empty list.
type jsonList []string

// Scan implements [sql.Scanner].
func (l *jsonList) Scan(column any) error {
	if json.Unmarshal(fmt.Appendf(nil, "%s", column), (*[]string)(l)) != nil {
		*l = nil
	}
	return nil
}

// lean is the table of tasks without their bodies, which no operation needs, and whose size nothing limits.
var lean = func() table {
	t := tasksTable
	t.columns = slices.Clone(t.columns)
	t.columns[2].name = "''"
	return t
}()

// taskByID reads a task without its body.
func taskByID(ctx context.Context, q querier, id string) (Task, error) {
	return readTask(ctx, q, id, lean)
}

func readTask(ctx context.Context, q querier, id string, t table) (Task, error) {
	list, err := load[Task](ctx, q, t, "WHERE id = ?", id)
	if err == nil && len(list) == 0 {
		err = ErrNoTask
	}
	if err != nil {
		return Task{}, err
	}
	return list[0], nil
}

// Task reads one task, or returns [ErrNoTask].
func (s *Store) Task(ctx context.Context, id string) (Task, error) {
	return readTask(ctx, s.db, id, tasksTable)
}

// Filter selects tasks. Empty fields select everything but archived tasks.
type Filter struct {
	Status          Status
	Assignee        string
	Tenant          string
	SessionID       string
	Template, Step  string // of a workflow
	IncludeArchived bool
	Sort            string // one of [Orders]; empty: priority
	Limit           int
}

// orders are the values of [Filter.Sort].
var orders = map[string]string{
	"": "priority DESC", "priority": "priority DESC", "priority-desc": "priority", "created": "created_at", "created-desc": "created_at DESC, rowid DESC",
	"due": "due_at IS NULL, due_at", "status": "status", "assignee": "assignee", "title": "title", "updated": "started_at DESC NULLS LAST, created_at DESC",
}

// Orders are the names of the orders that tasks can be listed in.
func Orders() []string { return slices.Sorted(maps.Keys(orders))[1:] }

// Tasks lists tasks; those that are equal in the order the oldest first.
func (s *Store) Tasks(ctx context.Context, f Filter) ([]Task, error) {
	where, args := "WHERE 1", []any(nil)
	for _, c := range [][2]string{
		{"status", string(f.Status)},
		{"assignee", f.Assignee},
		{"tenant", f.Tenant},
		{"session_id", f.SessionID},
		{"workflow_template_id", f.Template},
		{"current_step_key", f.Step},
	} {
		if c[1] != "" {
			where, args = where+" AND "+c[0]+" = ?", append(args, c[1])
		}
	}
	if f.Status == "" && !f.IncludeArchived {
		where += " AND status <> 'archived'"
	}
	order, known := orders[f.Sort]
	if !known {
		return nil, refuse("cannot sort by %q: there are %s", f.Sort, strings.Join(Orders(), ", "))
	}
	where += " ORDER BY " + order + ", created_at, id"
	if f.Limit > 0 {
		where, args = where+" LIMIT ?", append(args, f.Limit)
	}
	return load[Task](ctx, s.db, tasksTable, where, args...)
}

// Runs are the attempts at a task, the first one first.
func (s *Store) Runs(ctx context.Context, task string) ([]Run, error) {
	return load[Run](ctx, s.db, runsTable, "WHERE task_id = ? ORDER BY id", task)
}

// LastRuns are the attempts at any task that began last, the newest first.
func (s *Store) LastRuns(ctx context.Context, most int) ([]Run, error) {
	return load[Run](ctx, s.db, runsTable, "ORDER BY id DESC LIMIT ?", most)
}

// Events are those after a cursor, of one task or of all (empty).
func (s *Store) Events(ctx context.Context, task string, after int64) ([]Event, error) {
	if task == "" {
		return load[Event](ctx, s.db, eventsTable, "WHERE id > ? ORDER BY id", after)
	}
	return load[Event](ctx, s.db, eventsTable, "WHERE task_id = ? AND id > ? ORDER BY id", task, after)
}

// Comments are the remarks on a task, the oldest first.
func (s *Store) Comments(ctx context.Context, task string) ([]Comment, error) {
	return load[Comment](ctx, s.db, commentsTable, "WHERE task_id = ? ORDER BY created_at, id", task)
}

// Links are the tasks that a task waits for, and those that wait for it.
func (s *Store) Links(ctx context.Context, task string) (parents, children []string, err error) {
	parents, err = read[string](ctx, s.db, "SELECT parent_id FROM task_links WHERE child_id = ? ORDER BY parent_id", task)
	if err == nil {
		children, err = read[string](ctx, s.db, "SELECT child_id FROM task_links WHERE parent_id = ? ORDER BY child_id", task)
	}
	return parents, children, err
}

// Stats is how the board stands.
type Stats struct {
	ByStatus   map[Status]int            `json:"by_status"`
	ByAssignee map[string]map[Status]int `json:"by_assignee"`
	OldestAge  *int64                    `json:"oldest_ready_age_seconds"` // of the oldest ready task; nil without one
	Now        int64                     `json:"now"`
}

// Stats counts the board's tasks.
func (s *Store) Stats(ctx context.Context, now time.Time) (Stats, error) {
	st := Stats{Now: now.Unix(), ByStatus: make(map[Status]int), ByAssignee: make(map[string]map[Status]int)}
	counts, err := read[struct {
		Status Status
		Who    string
		N      int
	}](ctx, s.db, "SELECT status, COALESCE(assignee, ''), count(*) FROM tasks GROUP BY status, assignee")
	if err != nil {
		return st, err
	}
	for _, c := range counts {
		st.ByStatus[c.Status] += c.N
		if c.Who == "" || c.Status == Archived {
			continue
		}
		if st.ByAssignee[c.Who] == nil {
			st.ByAssignee[c.Who] = make(map[Status]int)
		}
		st.ByAssignee[c.Who][c.Status] += c.N
	}
	oldest, err := first[int64](ctx, s.db, "SELECT COALESCE(min(CAST(created_at AS INTEGER)), 0) FROM tasks WHERE status = 'ready'")
	if oldest > 0 {
		st.OldestAge = new(max(0, now.Unix()-oldest))
	}
	return st, err
}
