package kanban

import (
	"fmt"
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
	text       = "TEXT"
	textNeeded = "TEXT NOT NULL"
	integer    = "INTEGER"
	intNeeded  = "INTEGER NOT NULL"
	zero       = "INTEGER NOT NULL DEFAULT 0"
	serial     = "INTEGER PRIMARY KEY AUTOINCREMENT"
)

// Where the tables stand whose rows are read as a whole. The fields of [Task], [Comment], [Event] and [Run] are their columns in order.
const (
	tasksTable    = 0
	commentsTable = 2
	eventsTable   = 3
	runsTable     = 4
)

var tables = []table{
	{name: "tasks", columns: []column{
		{"id", "TEXT PRIMARY KEY"},
		{"title", textNeeded},
		{"body", text},
		{"assignee", text},
		{"status", textNeeded},
		{"priority", "INTEGER DEFAULT 0"},
		{"created_by", text},
		{"created_at", intNeeded},
		{"started_at", integer},
		{"completed_at", integer},
		{"workspace_kind", "TEXT NOT NULL DEFAULT 'scratch'"},
		{"workspace_path", text},
		{"branch_name", text},
		{"claim_lock", text},
		{"claim_expires", integer},
		{"tenant", text},
		{"result", text},
		{"idempotency_key", text},
		{"consecutive_failures", zero},
		{"worker_pid", integer},
		{"last_failure_error", text},
		{"max_runtime_seconds", integer},
		{"last_heartbeat_at", integer},
		{"current_run_id", integer},
		{"workflow_template_id", text},
		{"current_step_key", text},
		{"skills", text},
		{"model_override", text},
		{"max_retries", integer},
		{"goal_mode", zero},
		{"goal_max_turns", integer},
		{"session_id", text},
		{"due_at", integer},
	}},
	{name: "task_links", columns: []column{{"parent_id", textNeeded}, {"child_id", textNeeded}}, key: "parent_id, child_id"},
	{name: "task_comments", columns: []column{
		{"id", serial}, {"task_id", textNeeded}, {"author", textNeeded}, {"body", textNeeded}, {"created_at", intNeeded},
	}},
	{name: "task_events", columns: []column{
		{"id", serial}, {"task_id", textNeeded}, {"run_id", integer}, {"kind", textNeeded}, {"payload", text}, {"created_at", intNeeded},
	}},
	{name: "task_runs", columns: []column{
		{"id", serial},
		{"task_id", textNeeded},
		{"profile", text},
		{"step_key", text},
		{"status", textNeeded},
		{"claim_lock", text},
		{"claim_expires", integer},
		{"worker_pid", integer},
		{"max_runtime_seconds", integer},
		{"last_heartbeat_at", integer},
		{"started_at", intNeeded},
		{"ended_at", integer},
		{"outcome", text},
		{"summary", text},
		{"metadata", text},
		{"error", text},
	}},
	{name: "task_attachments", columns: []column{
		{"id", serial},
		{"task_id", textNeeded},
		{"filename", textNeeded},
		{"stored_path", textNeeded},
		{"content_type", text},
		{"size", zero},
		{"uploaded_by", text},
		{"created_at", intNeeded},
	}},
	{name: "kanban_notify_subs", columns: []column{
		{"task_id", textNeeded},
		{"platform", textNeeded},
		{"chat_id", textNeeded},
		{"thread_id", "TEXT NOT NULL DEFAULT ''"},
		{"user_id", text},
		{"notifier_profile", text},
		{"created_at", intNeeded},
		{"last_event_id", zero},
	}, key: "task_id, platform, chat_id, thread_id"},
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
