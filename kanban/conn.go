package kanban

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite" // SQLite without cgo
	sqlite3 "modernc.org/sqlite/lib"
)

// useOFDLocks makes SQLite use open file description locks (fcntl(2), F_OFD_SETLK). This package also opens the board's file
// itself. When it closes that descriptor, the kernel would drop the ordinary record locks that SQLite holds in the same
// process.
var useOFDLocks = sync.OnceFunc(func() { _, _ = sqlite.OFDLocking(true) })

// openDatabase opens a database file with the SQLite settings that all writers of the board use. mode is "rwc", "rw", "ro" or
// [immutableMode]; busy is how long a query waits for another program's lock. The result allows only one connection, so a caller
// must read all rows before it makes its next query.
func openDatabase(path, mode string, busy time.Duration) (*sql.DB, error) {
	useOFDLocks()
	query := url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()),
		"synchronous(FULL)", "wal_autocheckpoint(100)", "foreign_keys(ON)", "secure_delete(ON)", "cell_size_check(ON)",
	}}
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "mode=" + mode + "&" + query.Encode()}
	connector, err := sqlite.NewConnector(dsn.String())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// immutableMode is the mode for a file on a volume that is mounted read-only. It tells SQLite not to create companion files.
const immutableMode = "ro&immutable=1"

// isBusy reports whether an error means that another program has locked the file for too long. The file isn't damaged, and a
// later try may succeed.
func isBusy(err error) bool { return hasCode(err, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) }

// ExplainFileError returns an explanation for users of why the board's file can't be used. If it has none that is better, it
// returns the message of SQLite or the kernel.
func ExplainFileError(err error) string {
	switch {
	case isBusy(err):
		return "another program is writing to the board, and does not end; try again, or see: hinit kanban doctor"
	case hasCode(err, sqlite3.SQLITE_READONLY), errors.Is(err, unix.EROFS):
		return "the board's file can't be written: the volume is mounted read-only (mount it without :ro), or the file belongs to another user"
	case hasCode(err, sqlite3.SQLITE_FULL), errors.Is(err, unix.ENOSPC):
		return "the volume of the board is full"
	case isCorrupt(err):
		return fmt.Sprintf("the board's file is damaged (%v); see: hinit kanban doctor", err)
	}
	return err.Error()
}

// isCorrupt reports whether an error means that the file's content is damaged.
func isCorrupt(err error) bool { return hasCode(err, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) }

// hasCode reports whether an error is an SQLite error with one of these result codes.
func hasCode(err error, codes ...int) bool {
	e, is := errors.AsType[*sqlite.Error](err)
	return is && slices.Contains(codes, e.Code()&0xff)
}

// writeTx is a write transaction. After the first error, later calls do nothing, and the transaction fails with that error at its
// end. So the methods return no errors, and callers need not check each step.
type writeTx struct {
	conn  *sql.Conn
	ctx   context.Context //nolint:containedctx // a transaction ends before the call that passed ctx
	store *Store
	now   int64 // Time in seconds since 1970 for all rows that the transaction writes.
	err   error
}

// exec runs a statement and returns the number of rows that the statement has changed.
func (t *writeTx) exec(query string, args ...any) (rows int64) {
	if t.err != nil {
		return 0
	}
	res, err := t.conn.ExecContext(t.ctx, query, args...)
	if err == nil {
		rows, err = res.RowsAffected()
	}
	t.err = err
	return rows
}

// insert adds a row and returns its id.
func (t *writeTx) insert(query string, args ...any) (id int64) {
	t.exec(query, args...)
	return queryFirstInTx[int64](t, "SELECT last_insert_rowid()")
}

// queryAllInTx is [queryAll] inside a transaction. It stores an error in t.
func queryAllInTx[T any](t *writeTx, query string, args ...any) (rows []T) {
	if t.err == nil {
		rows, t.err = queryAll[T](t.ctx, t.conn, query, args...)
	}
	return rows
}

// queryFirstInTx is [queryFirst] inside a transaction. It stores an error in t.
func queryFirstInTx[T any](t *writeTx, query string, args ...any) (row T) {
	if t.err == nil {
		row, t.err = queryFirst[T](t.ctx, t.conn, query, args...)
	}
	return row
}

// errNothingToCommit is returned by a function that runs in [Store.write] and has changed nothing. write then rolls the
// transaction back and returns no error.
var errNothingToCommit = errors.New("nothing to do")

// Writable returns the reason why the board can't be written now, or nil. It tries an empty write transaction.
func (s *Store) Writable(ctx context.Context) error {
	return s.write(ctx, time.Time{}, func(*writeTx) error { return errNothingToCommit })
}

// updateTask runs do in one transaction, with the task that has this id. It returns false if the task does not exist, or if do
// returns [errNothingToCommit].
func (s *Store) updateTask(ctx context.Context, now time.Time, id string, do func(t *writeTx, task Task) error) (done bool, err error) {
	err = s.write(ctx, now, func(t *writeTx) error {
		task, err := readTask(ctx, t.conn, id, tasksWithoutBody)
		if errors.Is(err, ErrNoTask) {
			return errNothingToCommit
		}
		if err == nil {
			err = do(t, task)
			done = err == nil
		}
		return err
	})
	return done && err == nil, err
}

// write runs do in one immediate transaction and commits it if do succeeds. do must use only t: the store has a single
// connection, so a call of the store would wait for ever.
func (s *Store) write(ctx context.Context, now time.Time, do func(t *writeTx) error) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	t := &writeTx{conn: conn, ctx: ctx, store: s, now: now.Unix()}
	err = do(t)
	if t.err != nil {
		err = t.err
	}
	if err == nil {
		err = s.crashPoint("commit")
	}
	if err == nil {
		if _, err = conn.ExecContext(ctx, "COMMIT"); err == nil {
			return errors.Join(s.crashPoint("committed"), s.checkLength(ctx, conn))
		}
	}
	// Return the first error, not the error of the rollback. SQLITE_ERROR means that SQLite has already rolled back. If the
	// rollback failed for another reason, drop the connection, because it may still be in the transaction.
	if _, rollback := conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK"); rollback != nil && !hasCode(rollback, sqlite3.SQLITE_ERROR) {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	if errors.Is(err, errNothingToCommit) {
		return nil
	}
	return err
}

// querier runs a query: it is a database, a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// queryAll returns all rows of a query. T is the type of the only column, or a struct with a field for each column, in order.
// A field that is itself a struct stands for as many columns as it has fields. A null becomes the zero value. Any column can
// contain one, even the id of a task, because SQLite allows that.
func queryAll[T any](ctx context.Context, q querier, query string, args ...any) (list []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var row T
	fields := columnFields(reflect.ValueOf(&row).Elem())
	// Scan into pointers to pointers, which become nil for a null.
	columns := lo.Map(fields, func(f reflect.Value, _ int) any { return reflect.New(reflect.PointerTo(f.Type())).Interface() })
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return nil, err
		}
		for i, f := range fields {
			f.SetZero()
			if value := reflect.ValueOf(columns[i]).Elem(); !value.IsNil() {
				f.Set(value.Elem())
			}
		}
		list = append(list, row)
	}
	return list, rows.Err()
}

// columnFields returns the fields of row in the order of the columns, or row itself if it is no struct.
func columnFields(row reflect.Value) (fields []reflect.Value) {
	if row.Kind() == reflect.Struct {
		for _, field := range row.Fields() {
			fields = append(fields, columnFields(field)...)
		}
		return fields
	}
	if words, is := reflect.TypeAssert[*[]string](row.Addr()); is {
		row = reflect.ValueOf((*jsonList)(words)).Elem()
	}
	return []reflect.Value{row}
}

// queryFirst returns the first row of a query, or the zero value if there is none.
func queryFirst[T any](ctx context.Context, q querier, query string, args ...any) (row T, err error) {
	rows, err := queryAll[T](ctx, q, query, args...)
	if len(rows) > 0 {
		row = rows[0]
	}
	return row, err
}

// loadRows reads rows of a table into T, which has a field for each column, in order. rest is the end of the query, such as WHERE
// and ORDER BY.
func loadRows[T any](ctx context.Context, q querier, t table, rest string, args ...any) ([]T, error) {
	return queryAll[T](ctx, q, "SELECT "+selectColumns[T](t)+" FROM "+t.name+" "+rest, args...)
}

// selectColumns returns the list of columns for a SELECT by [loadRows]. SQLite lets any program store a text in an integer
// column and the reverse. So the SELECT converts each column to the type of its field in T. The conversion never fails: a
// text that isn't a number becomes 0.
func selectColumns[T any](t table) string {
	return strings.Join(lo.Map(t.columns, func(c column, i int) string {
		expr := fmt.Sprintf("CAST(%s AS %s)", c.name, lo.Ternary(strings.HasPrefix(c.definition, sqlText), sqlText, sqlInteger))
		if reflect.TypeFor[T]().Field(i).Type.Kind() == reflect.Bool {
			expr += " <> 0"
		}
		return expr
	}), ", ")
}

// NonIntegerValues lists the numeric columns of tasks and runs that hold something other than an integer, for `hinit kanban
// doctor`. Each text names the row's id and the column.
func (s *Store) NonIntegerValues(ctx context.Context) ([]string, error) {
	query := lo.FlatMap([]table{tasksTable, runsTable}, func(t table, _ int) []string {
		return lo.FilterMap(t.columns, func(c column, _ int) (string, bool) {
			query := fmt.Sprintf("SELECT %[1]s.id || ' (%[1]s.%[2]s)' FROM %[1]s WHERE typeof(%[2]s) NOT IN ('integer', 'null')", t.name, c.name)
			return query, strings.HasPrefix(c.definition, sqlInteger) && c.definition != sqlSerial
		})
	})
	return queryAll[string](ctx, s.db, strings.Join(query, " UNION ALL "))
}

// TasksWithoutID counts the tasks whose id is null, for `hinit kanban doctor`. SQLite allows a null id, but then no command
// can name the task.
func (s *Store) TasksWithoutID(ctx context.Context) (int, error) {
	return queryFirst[int](ctx, s.db, "SELECT count(*) FROM tasks WHERE id IS NULL")
}

// jsonList reads a column that contains a JSON array of strings. Anything else in the column is read as an empty list.
type jsonList []string

// Scan implements [sql.Scanner].
func (l *jsonList) Scan(column any) error {
	if json.Unmarshal(fmt.Appendf(nil, "%s", column), (*[]string)(l)) != nil {
		*l = nil
	}
	return nil
}

// tasksWithoutBody is tasksTable with an empty text in place of the body, which may be large.
var tasksWithoutBody = func() table {
	t := tasksTable
	t.columns = slices.Clone(t.columns)
	t.columns[2].name = "''"
	return t
}()

// readTask reads the task with this id. t is tasksTable, or [tasksWithoutBody] to skip the body.
func readTask(ctx context.Context, q querier, id string, t table) (Task, error) {
	list, err := loadRows[Task](ctx, q, t, "WHERE id = ?", id)
	if err == nil && len(list) == 0 {
		err = ErrNoTask
	}
	return lo.FirstOrEmpty(list), err
}

// Task reads one task, or returns [ErrNoTask].
func (s *Store) Task(ctx context.Context, id string) (Task, error) {
	return readTask(ctx, s.db, id, tasksTable)
}

// TaskFilter selects tasks for [Store.Tasks]. An empty field does not restrict the selection. Archived tasks are selected only if
// IncludeArchived is true or Status is [Archived].
type TaskFilter struct {
	Status            Status
	Assignee          string
	Tenant            string
	SessionID         string
	Template, StepKey string // Workflow template and step of the task.
	IncludeArchived   bool
	WithoutBody       bool   // Leave the bodies empty.
	Sort              string // Order of the result, one of [SortOrders]; empty: by priority.
	Limit             int    // Maximum number of tasks; 0: no limit.
}

// sortOrders maps each value of [TaskFilter.Sort] to its SQL order.
var sortOrders = map[string]string{
	"": "priority DESC", "priority": "priority DESC", "priority-desc": "priority", "created": "created_at", "created-desc": "created_at DESC, rowid DESC",
	"due": "due_at IS NULL, due_at", "status": "status", "assignee": "assignee", "title": "title", "updated": "started_at DESC NULLS LAST, created_at DESC",
}

// SortOrders returns the valid values of [TaskFilter.Sort], for a command's help.
func SortOrders() []string { return slices.Sorted(maps.Keys(sortOrders))[1:] }

// Tasks lists tasks. Tasks that are equal in the selected order are listed oldest first.
func (s *Store) Tasks(ctx context.Context, f TaskFilter) ([]Task, error) {
	where, args := "WHERE 1", []any(nil)
	for _, c := range [][2]string{
		{"status", string(f.Status)},
		{"assignee", f.Assignee},
		{"tenant", f.Tenant},
		{"session_id", f.SessionID},
		{"workflow_template_id", f.Template},
		{"current_step_key", f.StepKey},
	} {
		if c[1] != "" {
			where, args = where+" AND "+c[0]+" = ?", append(args, c[1])
		}
	}
	if f.Status == "" && !f.IncludeArchived {
		where += " AND status <> 'archived'"
	}
	order, known := sortOrders[f.Sort]
	if !known {
		return nil, invalidf("cannot sort by %q: there are %s", f.Sort, strings.Join(SortOrders(), ", "))
	}
	where += " ORDER BY " + order + ", created_at, id"
	if f.Limit > 0 {
		where, args = where+" LIMIT ?", append(args, f.Limit)
	}
	return loadRows[Task](ctx, s.db, lo.Ternary(f.WithoutBody, tasksWithoutBody, tasksTable), where, args...)
}

// Runs returns the attempts at a task, oldest first.
func (s *Store) Runs(ctx context.Context, task string) ([]Run, error) {
	return loadRows[Run](ctx, s.db, runsTable, "WHERE task_id = ? ORDER BY id", task)
}

// TitledRun is an attempt with the title of its task, or "" if the task was deleted.
type TitledRun struct {
	Run   Run
	Title string
}

// LastRuns returns the latest attempts at any tasks, newest first, at most limit of them.
func (s *Store) LastRuns(ctx context.Context, limit int) ([]TitledRun, error) {
	return queryAll[TitledRun](ctx, s.db, "SELECT "+selectColumns[Run](runsTable)+`, (SELECT title FROM tasks WHERE tasks.id = task_id)
		FROM task_runs ORDER BY id DESC LIMIT ?`, limit)
}

// Events returns the events of one task, or of all tasks if task is empty. It returns only events whose ID is greater than after,
// so that a reader can continue where it stopped.
func (s *Store) Events(ctx context.Context, task string, after int64) ([]Event, error) {
	if task == "" {
		return loadRows[Event](ctx, s.db, eventsTable, "WHERE id > ? ORDER BY id", after)
	}
	return loadRows[Event](ctx, s.db, eventsTable, "WHERE task_id = ? AND id > ? ORDER BY id", task, after)
}

// Comments returns the comments on a task, oldest first.
func (s *Store) Comments(ctx context.Context, task string) ([]Comment, error) {
	return loadRows[Comment](ctx, s.db, commentsTable, "WHERE task_id = ? ORDER BY created_at, id", task)
}

// Links returns the tasks for which a task waits (parents), and the tasks that wait for it (children).
func (s *Store) Links(ctx context.Context, task string) (parents, children []string, err error) {
	parents, err = queryAll[string](ctx, s.db, "SELECT parent_id FROM task_links WHERE child_id = ? ORDER BY parent_id", task)
	if err == nil {
		children, err = queryAll[string](ctx, s.db, "SELECT child_id FROM task_links WHERE parent_id = ? ORDER BY child_id", task)
	}
	return parents, children, err
}

// Stats holds the numbers of a board's tasks by status and by assignee.
type Stats struct {
	ByStatus   map[Status]int            `json:"by_status"`
	ByAssignee map[string]map[Status]int `json:"by_assignee"`
	OldestAge  *int64                    `json:"oldest_ready_age_seconds"` // Age of the oldest ready task; nil if none is ready.
	Now        int64                     `json:"now"`
}

// Stats counts the board's tasks by status and by assignee.
func (s *Store) Stats(ctx context.Context, now time.Time) (Stats, error) {
	st := Stats{Now: now.Unix(), ByStatus: make(map[Status]int), ByAssignee: make(map[string]map[Status]int)}
	counts, err := queryAll[struct {
		Status Status
		Who    string
		N      int
	}](ctx, s.db, "SELECT status, assignee, count(*) FROM tasks GROUP BY status, assignee")
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
	oldest, err := queryFirst[int64](ctx, s.db, "SELECT min(CAST(created_at AS INTEGER)) FROM tasks WHERE status = 'ready'")
	if oldest > 0 {
		st.OldestAge = new(max(0, now.Unix()-oldest))
	}
	return st, err
}
