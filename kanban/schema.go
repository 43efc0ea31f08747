package kanban

import (
	"fmt"
	"reflect"
	"strings"
)

// column is a column as `create table` and `alter table add column` have it.
type column struct{ name, def string }

// table is a table of the board. Every writer makes it if it isn't there, and adds the columns that an older one lacks.
type table struct {
	name    string
	columns []column
	key     string // a primary key of several columns
}

const (
	text    = "TEXT"
	integer = "INTEGER"
	serial  = "INTEGER PRIMARY KEY AUTOINCREMENT"
)

// columnsOf are the columns of a table whose rows are read as a whole: each field of T is one, under the name that it has in JSON.
func columnsOf[T any]() (list []column) {
	for field := range reflect.TypeFor[T]().Fields() {
		list = append(list, column{field.Tag.Get("json"), field.Tag.Get("sql")})
	}
	return list
}

// columns takes columns as SQL has them.
func columns(defs ...string) (list []column) {
	for _, text := range defs {
		name, def, _ := strings.Cut(text, " ")
		list = append(list, column{name, def})
	}
	return list
}

// The tables whose rows are read as a whole.
var (
	tasksTable    = table{name: "tasks", columns: columnsOf[Task]()}
	commentsTable = table{name: "task_comments", columns: columnsOf[Comment]()}
	eventsTable   = table{name: "task_events", columns: columnsOf[Event]()}
	runsTable     = table{name: "task_runs", columns: columnsOf[Run]()}
)

var tables = []table{
	tasksTable,
	{name: "task_links", columns: columns("parent_id TEXT NOT NULL", "child_id TEXT NOT NULL"), key: "parent_id, child_id"},
	commentsTable,
	eventsTable,
	runsTable,
	{name: "task_attachments", columns: columns(
		"id "+serial, "task_id TEXT NOT NULL", "filename TEXT NOT NULL", "stored_path TEXT NOT NULL", "content_type TEXT",
		"size INTEGER NOT NULL DEFAULT 0", "uploaded_by TEXT", "created_at INTEGER NOT NULL",
	)},
	{name: "kanban_notify_subs", key: "task_id, platform, chat_id, thread_id", columns: columns(
		"task_id TEXT NOT NULL", "platform TEXT NOT NULL", "chat_id TEXT NOT NULL", "thread_id TEXT NOT NULL DEFAULT ''", "user_id TEXT",
		"notifier_profile TEXT", "created_at INTEGER NOT NULL", "last_event_id INTEGER NOT NULL DEFAULT 0",
	)},
}

// indexes are name, table and columns.
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

// create is the statement that makes the table under a name.
func (t table) create(name string) string {
	defs := make([]string, 0, len(t.columns)+1)
	for _, c := range t.columns {
		defs = append(defs, c.name+" "+c.def)
	}
	if t.key != "" {
		defs = append(defs, "PRIMARY KEY ("+t.key+")")
	}
	return fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n    %s\n)", name, strings.Join(defs, ",\n    "))
}
