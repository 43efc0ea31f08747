package kanban

// Status is a column of the board.
type Status string

// The nine statuses. A row with another one, written by somebody else, is shown and never touched.
const (
	Triage    Status = "triage"
	Todo      Status = "todo"
	Scheduled Status = "scheduled"
	Ready     Status = "ready"
	Running   Status = "running"
	Blocked   Status = "blocked"
	Review    Status = "review"
	Done      Status = "done"
	Archived  Status = "archived"
)

// Statuses are all of them in the order in which a board shows them.
var Statuses = []Status{Triage, Todo, Scheduled, Ready, Running, Blocked, Review, Done, Archived}

// The kinds of workspace.
const (
	Scratch  = "scratch"
	Worktree = "worktree"
	Dir      = "dir"
)

// Task is a row of the board. It has a field for each column, so that a reader needs no second query. Times are epoch
// seconds; a zero time, a zero number and an empty string stand for null unless the field is a pointer.
type Task struct {
	ID                  string   `json:"id" sql:"TEXT PRIMARY KEY"`
	Title               string   `json:"title" sql:"TEXT NOT NULL"`
	Body                string   `json:"body" sql:"TEXT"`
	Assignee            string   `json:"assignee" sql:"TEXT"`
	Status              Status   `json:"status" sql:"TEXT NOT NULL"`
	Priority            int64    `json:"priority" sql:"INTEGER DEFAULT 0"`
	CreatedBy           string   `json:"created_by" sql:"TEXT"`
	CreatedAt           int64    `json:"created_at" sql:"INTEGER NOT NULL"`
	StartedAt           int64    `json:"started_at" sql:"INTEGER"` // the first start ever
	CompletedAt         int64    `json:"completed_at" sql:"INTEGER"`
	WorkspaceKind       string   `json:"workspace_kind" sql:"TEXT NOT NULL DEFAULT 'scratch'"`
	WorkspacePath       string   `json:"workspace_path" sql:"TEXT"`
	Branch              string   `json:"branch_name" sql:"TEXT"`
	ClaimLock           string   `json:"claim_lock" sql:"TEXT"` // host:pid of the claimer
	ClaimExpires        int64    `json:"claim_expires" sql:"INTEGER"`
	Tenant              string   `json:"tenant" sql:"TEXT"`
	Result              string   `json:"result" sql:"TEXT"`
	IdempotencyKey      string   `json:"idempotency_key" sql:"TEXT"`
	ConsecutiveFailures int64    `json:"consecutive_failures" sql:"INTEGER NOT NULL DEFAULT 0"`
	WorkerPID           int      `json:"worker_pid" sql:"INTEGER"`
	LastFailureError    string   `json:"last_failure_error" sql:"TEXT"`
	MaxRuntimeSeconds   *int64   `json:"max_runtime_seconds" sql:"INTEGER"`
	LastHeartbeatAt     int64    `json:"last_heartbeat_at" sql:"INTEGER"`
	CurrentRunID        int64    `json:"current_run_id" sql:"INTEGER"`
	WorkflowTemplateID  string   `json:"workflow_template_id" sql:"TEXT"`
	CurrentStepKey      string   `json:"current_step_key" sql:"TEXT"`
	Skills              []string `json:"skills" sql:"TEXT"`
	ModelOverride       string   `json:"model_override" sql:"TEXT"`
	MaxRetries          *int64   `json:"max_retries" sql:"INTEGER"`
	GoalMode            bool     `json:"goal_mode" sql:"INTEGER NOT NULL DEFAULT 0"`
	GoalMaxTurns        *int64   `json:"goal_max_turns" sql:"INTEGER"`
	SessionID           string   `json:"session_id" sql:"TEXT"`
	DueAt               int64    `json:"due_at" sql:"INTEGER"`
}

// Run is one attempt at a task. It is open until EndedAt is set.
type Run struct {
	ID                int64  `json:"id" sql:"INTEGER PRIMARY KEY AUTOINCREMENT"`
	TaskID            string `json:"task_id" sql:"TEXT NOT NULL"`
	Profile           string `json:"profile" sql:"TEXT"`
	StepKey           string `json:"step_key" sql:"TEXT"`
	Status            string `json:"status" sql:"TEXT NOT NULL"`
	ClaimLock         string `json:"claim_lock" sql:"TEXT"`
	ClaimExpires      int64  `json:"claim_expires" sql:"INTEGER"`
	WorkerPID         int    `json:"worker_pid" sql:"INTEGER"`
	MaxRuntimeSeconds *int64 `json:"max_runtime_seconds" sql:"INTEGER"`
	LastHeartbeatAt   int64  `json:"last_heartbeat_at" sql:"INTEGER"`
	StartedAt         int64  `json:"started_at" sql:"INTEGER NOT NULL"`
	EndedAt           int64  `json:"ended_at" sql:"INTEGER"`
	Outcome           string `json:"outcome" sql:"TEXT"`
	Summary           string `json:"summary" sql:"TEXT"`
	Metadata          string `json:"metadata" sql:"TEXT"` // JSON, or empty
	Error             string `json:"error" sql:"TEXT"`
}

// Event is one line of a task's history. IDs grow, so the last one seen is a cursor.
type Event struct {
	ID        int64  `json:"id" sql:"INTEGER PRIMARY KEY AUTOINCREMENT"`
	TaskID    string `json:"task_id" sql:"TEXT NOT NULL"`
	RunID     int64  `json:"run_id" sql:"INTEGER"`
	Kind      string `json:"kind" sql:"TEXT NOT NULL"`
	Payload   string `json:"payload" sql:"TEXT"` // JSON, or empty
	CreatedAt int64  `json:"created_at" sql:"INTEGER NOT NULL"`
}

// Comment is a remark on a task.
type Comment struct {
	ID        int64  `json:"id" sql:"INTEGER PRIMARY KEY AUTOINCREMENT"`
	TaskID    string `json:"task_id" sql:"TEXT NOT NULL"`
	Author    string `json:"author" sql:"TEXT NOT NULL"`
	Body      string `json:"body" sql:"TEXT NOT NULL"`
	CreatedAt int64  `json:"created_at" sql:"INTEGER NOT NULL"`
}
