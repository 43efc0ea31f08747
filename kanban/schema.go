package kanban

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/samber/lo"
)

// column is the name of a column and its SQL definition, as in `create table` and `alter table add column`.
type column struct{ name, definition string }

// table is a table of the board's database. Each program that opens the board creates missing tables, and adds the columns
// that an older version of a table lacks.
type table struct {
	name       string
	columns    []column
	primaryKey string // Columns of a primary key with several columns.
}

const (
	sqlText    = "TEXT"
	sqlInteger = "INTEGER"
	sqlSerial  = "INTEGER PRIMARY KEY AUTOINCREMENT"
)

// columnsOf returns the columns of a table whose rows have the type T. Each field of T is a column: its json tag is the column's
// name, its sql tag the SQL definition.
func columnsOf[T any]() (list []column) {
	for field := range reflect.TypeFor[T]().Fields() {
		list = append(list, column{field.Tag.Get("json"), field.Tag.Get("sql")})
	}
	return list
}

// parseColumns parses column definitions. Each is a name, a space, and an SQL definition.
func parseColumns(defs ...string) []column {
	return lo.Map(defs, func(text string, _ int) column {
		name, def, _ := strings.Cut(text, " ")
		return column{name, def}
	})
}

// Tables whose rows are read as a whole, each row into a struct.
var (
	tasksTable    = table{name: "tasks", columns: columnsOf[Task]()}
	commentsTable = table{name: "task_comments", columns: columnsOf[Comment]()}
	eventsTable   = table{name: "task_events", columns: columnsOf[Event]()}
	runsTable     = table{name: "task_runs", columns: columnsOf[Run]()}
)

var tables = []table{
	tasksTable,
	{name: "task_links", columns: parseColumns("parent_id TEXT NOT NULL", "child_id TEXT NOT NULL"), primaryKey: "parent_id, child_id"},
	commentsTable,
	eventsTable,
	runsTable,
	{name: "task_attachments", columns: parseColumns(
		"id "+sqlSerial, "task_id TEXT NOT NULL", "filename TEXT NOT NULL", "stored_path TEXT NOT NULL", "content_type TEXT",
		"size INTEGER NOT NULL DEFAULT 0", "uploaded_by TEXT", "created_at INTEGER NOT NULL",
	)},
	{name: "kanban_notify_subs", primaryKey: "task_id, platform, chat_id, thread_id", columns: parseColumns(
		"task_id TEXT NOT NULL", "platform TEXT NOT NULL", "chat_id TEXT NOT NULL", "thread_id TEXT NOT NULL DEFAULT ''", "user_id TEXT",
		"notifier_profile TEXT", "created_at INTEGER NOT NULL", "last_event_id INTEGER NOT NULL DEFAULT 0",
	)},
}

// indexes lists the name, the table and the columns of each index.
var indexes = [][3]string{
	{"idx_tasks_assignee_status", "tasks", "assignee, status"},
	{"idx_tasks_status", "tasks", "status"},
	{"idx_tasks_tenant", "tasks", "tenant"},
	{"idx_tasks_idempotency", "tasks", "idempotency_key"},
	{"idx_tasks_session_id", "tasks", "session_id"},
	{"idx_links_child", "task_links", "child_id"},
	{"idx_links_parent", "task_links", "parent_id"},
	{"idx_comments_task", "task_comments", "task_id, created_at"},
	{"idx_events_task", "task_events", "task_id, created_at"},
	{"idx_events_run", "task_events", "run_id, id"},
	{"idx_runs_task", "task_runs", "task_id, started_at"},
	{"idx_runs_status", "task_runs", "status"},
	{"idx_attachments_task", "task_attachments", "task_id, created_at"},
	{"idx_notify_task", "kanban_notify_subs", "task_id"},
}

// createStatement returns the SQL statement that creates the table. The parameter name differs from t.name while a table is
// rebuilt.
func (t table) createStatement(name string) string {
	defs := lo.Map(t.columns, func(c column, _ int) string { return c.name + " " + c.definition })
	if t.primaryKey != "" {
		defs = append(defs, "PRIMARY KEY ("+t.primaryKey+")")
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n    %s\n)", name, strings.Join(defs, ",\n    "))
}

// renamedEventKinds lists the kinds of events that older files name differently: the old name, then the current one.
var renamedEventKinds = [][2]string{{"ready", "promoted"}, {"priority", "reprioritized"}, {"spawn_auto_blocked", "gave_up"}}

// fileSchema is the structure of a board's file. For each table and index, it has the name as a key, with the value "". For each
// column, it has the key "table.column", with the declared type of the column as the value.
type fileSchema map[string]string

func readSchema(ctx context.Context, q querier) (fileSchema, error) {
	type item struct{ Name, Type string }
	items, err := queryAll[item](ctx, q, `SELECT name, '' FROM sqlite_master UNION ALL
		SELECT m.name || '.' || c.name, upper(c.type) FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'`)
	return lo.SliceToMap(items, func(i item) (string, string) { return i.Name, i.Type }), err
}

// needsRebuild reports whether a table must be copied into a new one. In old files, ids or event cursors aren't integers, and
// ALTER TABLE can't change the type of a column.
func (sh fileSchema) needsRebuild(t table) bool {
	return slices.ContainsFunc(t.columns, func(c column) bool {
		kind := sh[t.name+"."+c.name]
		return (c.definition == sqlSerial || c.name == "last_event_id") && kind != "" && kind != "INTEGER"
	})
}

// missingColumns returns the columns of t that the table in the file lacks.
func (sh fileSchema) missingColumns(t table) []column {
	return lo.Reject(t.columns, func(c column, _ int) bool { return lo.HasKey(sh, t.name+"."+c.name) })
}

// checkComplete reports whether the file has all tables, columns and indexes of a new board. old is true if a migration must also
// change existing rows.
func (sh fileSchema) checkComplete() (complete, old bool) {
	complete = true
	for _, t := range tables {
		if !lo.HasKey(sh, t.name) {
			complete = false
		} else if sh.needsRebuild(t) || len(sh.missingColumns(t)) > 0 {
			complete, old = false, true
		}
	}
	for _, ix := range indexes {
		complete = complete && lo.HasKey(sh, ix[0])
	}
	return complete, old
}

// migrate changes an older file to the current structure. If existing rows must change, it first makes a backup.
func (s *Store) migrate(ctx context.Context) error {
	sh, err := readSchema(ctx, s.db)
	if err != nil {
		return err
	}
	complete, old := sh.checkComplete()
	if complete {
		stray, err := queryFirst[bool](ctx, s.db, `SELECT EXISTS (SELECT 1 FROM tasks WHERE status = 'running' AND current_run_id IS NULL)
			OR EXISTS (SELECT 1 FROM task_events WHERE kind IN ('ready', 'priority', 'spawn_auto_blocked'))`)
		if err != nil || !stray {
			return err
		}
	}
	if old {
		if err := s.backupBeforeMigration(ctx); err != nil {
			return fmt.Errorf("cannot copy it first: %w", err)
		}
	}
	return s.write(ctx, time.Time{}, func(t *writeTx) error {
		sh, err := readSchema(ctx, t.conn) // Another process may have migrated the file before this transaction got the lock.
		if err != nil {
			return err
		}
		for _, table := range tables {
			t.exec(table.createStatement(table.name))
			if sh.needsRebuild(table) {
				t.rebuildTable(sh, table)
			} else if lo.HasKey(sh, table.name) {
				t.addColumns(sh, table)
			}
		}
		for _, ix := range indexes {
			t.exec(fmt.Sprintf("CREATE INDEX IF NOT EXISTS %s ON %s(%s)", ix[0], ix[1], ix[2]))
		}
		for _, kind := range renamedEventKinds {
			t.exec("UPDATE task_events SET kind = ? WHERE kind = ?", kind[1], kind[0])
		}
		t.addMissingRuns()
		return nil
	})
}

// renamedColumns maps a column of tasks to the column that held its values in older files. A migration copies the values and
// keeps the old column for older programs.
var renamedColumns = map[string]string{"consecutive_failures": "spawn_failures", "last_failure_error": "last_spawn_error"}

func (t *writeTx) addColumns(sh fileSchema, table table) {
	for _, c := range sh.missingColumns(table) {
		t.exec(fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", table.name, c.name, c.definition))
		if from := renamedColumns[c.name]; table.name == "tasks" && lo.HasKey(sh, "tasks."+from) {
			t.exec(fmt.Sprintf("UPDATE tasks SET %s = %s WHERE %s IS NOT NULL", c.name, from, from))
		}
	}
}

// rebuildTable replaces a table whose keys aren't integers (see [fileSchema.needsRebuild]). It changes the references to the new
// keys. It clears a reference to a row that no longer exists.
func (t *writeTx) rebuildTable(sh fileSchema, table table) {
	var into, from []string
	for _, c := range table.columns {
		switch {
		case c.definition == sqlSerial, !lo.HasKey(sh, table.name+"."+c.name):
			continue
		case c.name == "last_event_id":
			from = append(from, "CASE WHEN last_event_id <> '' AND last_event_id NOT GLOB '*[^0-9]*' THEN CAST(last_event_id AS INTEGER) ELSE 0 END")
		case c.name == "run_id":
			from = append(from, "CASE WHEN typeof(run_id) = 'integer' THEN run_id END")
		default:
			from = append(from, c.name)
		}
		into = append(into, c.name)
	}
	fresh := table.name + "_rebuilt"
	t.exec(table.createStatement(fresh))
	t.exec(fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s ORDER BY rowid", fresh, strings.Join(into, ", "), strings.Join(from, ", "), table.name))
	t.exec("DROP TABLE " + table.name)
	t.exec(fmt.Sprintf("ALTER TABLE %s RENAME TO %s", fresh, table.name))
	if table.name != runsTable.name {
		return
	}
	// The runs have new ids now. Connect each task with its open run again, and close the open runs that belong to no task.
	t.exec("UPDATE task_events SET run_id = NULL")
	t.exec(`UPDATE tasks SET current_run_id = (SELECT max(r.id) FROM task_runs r WHERE r.task_id = tasks.id AND r.ended_at IS NULL AND tasks.status = 'running')`)
	t.exec(`UPDATE task_runs SET status = 'reclaimed', outcome = 'reclaimed', ended_at = started_at, claim_lock = NULL, claim_expires = NULL, worker_pid = NULL
		WHERE ended_at IS NULL AND id NOT IN (SELECT current_run_id FROM tasks WHERE current_run_id IS NOT NULL)`)
}

// addMissingRuns adds a run to each running task that has none.
func (t *writeTx) addMissingRuns() {
	for _, id := range queryAllInTx[string](t, "SELECT id FROM tasks WHERE status = 'running' AND current_run_id IS NULL") {
		run := t.insert(`INSERT INTO task_runs (task_id, profile, step_key, status, claim_lock, claim_expires, worker_pid, max_runtime_seconds,
				last_heartbeat_at, started_at)
			SELECT id, assignee, current_step_key, 'running', claim_lock, claim_expires, worker_pid, max_runtime_seconds,
				last_heartbeat_at, COALESCE(started_at, created_at) FROM tasks WHERE id = ?`, id)
		t.exec("UPDATE tasks SET current_run_id = ? WHERE id = ?", run, id)
	}
}

// backupBeforeMigration copies the board before a migration. The copy's name contains a hash of the content, so repeated tries of
// a migration leave only one copy.
func (s *Store) backupBeforeMigration(ctx context.Context) error {
	dir, err := os.MkdirTemp(filepath.Dir(s.paths.DB), ".backup.*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	copied := filepath.Join(dir, "kanban.db")
	if err := s.Backup(ctx, copied); err != nil {
		return err
	}
	sum, err := hashFile(copied)
	if err != nil {
		return err
	}
	return os.Rename(copied, fmt.Sprintf("%s.migration.%s.bak", s.paths.DB, sum))
}

// Backup writes a copy of the board to a new file and checks it.
func (s *Store) Backup(ctx context.Context, path string) (err error) {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot write backup %s: %w", path, errors.Join(err, fs.ErrExist))
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	if _, err := s.db.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		return fmt.Errorf("cannot write backup %s: %w", path, err)
	}
	reason, err := s.checkIntegrity(ctx, path)
	if err == nil && reason != "" {
		err = errors.New(reason)
	}
	if err != nil {
		return fmt.Errorf("cannot check backup %s: %w", path, err)
	}
	return nil
}
