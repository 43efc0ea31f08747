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
	ID                  string   `json:"id"`
	Title               string   `json:"title"`
	Body                string   `json:"body"`
	Assignee            string   `json:"assignee"`
	Status              Status   `json:"status"`
	Priority            int64    `json:"priority"`
	CreatedBy           string   `json:"created_by"`
	CreatedAt           int64    `json:"created_at"`
	StartedAt           int64    `json:"started_at"` // the first start ever
	CompletedAt         int64    `json:"completed_at"`
	WorkspaceKind       string   `json:"workspace_kind"`
	WorkspacePath       string   `json:"workspace_path"`
	Branch              string   `json:"branch_name"`
	ClaimLock           string   `json:"claim_lock"` // host:pid of the claimer
	ClaimExpires        int64    `json:"claim_expires"`
	Tenant              string   `json:"tenant"`
	Result              string   `json:"result"`
	IdempotencyKey      string   `json:"idempotency_key"`
	ConsecutiveFailures int64    `json:"consecutive_failures"`
	WorkerPID           int      `json:"worker_pid"`
	LastFailureError    string   `json:"last_failure_error"`
	MaxRuntimeSeconds   *int64   `json:"max_runtime_seconds"`
	LastHeartbeatAt     int64    `json:"last_heartbeat_at"`
	CurrentRunID        int64    `json:"current_run_id"`
	WorkflowTemplateID  string   `json:"workflow_template_id"`
	CurrentStepKey      string   `json:"current_step_key"`
	Skills              []string `json:"skills"`
	ModelOverride       string   `json:"model_override"`
	MaxRetries          *int64   `json:"max_retries"`
	GoalMode            bool     `json:"goal_mode"`
	GoalMaxTurns        *int64   `json:"goal_max_turns"`
	SessionID           string   `json:"session_id"`
	DueAt               int64    `json:"due_at"`
}

// Run is one attempt at a task. It is open until EndedAt is set.
type Run struct {
	ID                int64  `json:"id"`
	TaskID            string `json:"task_id"`
	Profile           string `json:"profile"`
	StepKey           string `json:"step_key"`
	Status            string `json:"status"`
	ClaimLock         string `json:"claim_lock"`
	ClaimExpires      int64  `json:"claim_expires"`
	WorkerPID         int    `json:"worker_pid"`
	MaxRuntimeSeconds *int64 `json:"max_runtime_seconds"`
	LastHeartbeatAt   int64  `json:"last_heartbeat_at"`
	StartedAt         int64  `json:"started_at"`
	EndedAt           int64  `json:"ended_at"`
	Outcome           string `json:"outcome"`
	Summary           string `json:"summary"`
	Metadata          string `json:"metadata"` // JSON, or empty
	Error             string `json:"error"`
}

// Event is one line of a task's history. IDs grow, so the last one seen is a cursor.
type Event struct {
	ID        int64  `json:"id"`
	TaskID    string `json:"task_id"`
	RunID     int64  `json:"run_id"`
	Kind      string `json:"kind"`
	Payload   string `json:"payload"` // JSON, or empty
	CreatedAt int64  `json:"created_at"`
}

// Comment is a remark on a task.
type Comment struct {
	ID        int64  `json:"id"`
	TaskID    string `json:"task_id"`
	Author    string `json:"author"`
	Body      string `json:"body"`
	CreatedAt int64  `json:"created_at"`
}
