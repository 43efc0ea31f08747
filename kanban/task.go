package kanban

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Status is the state of a task. A board shows one column for each status.
type Status string

// The nine statuses of a task. A row with any other status was written by another program; this package shows it but never
// changes it.
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

// Statuses lists all statuses in the order in which a board shows its columns.
var Statuses = []Status{Triage, Todo, Scheduled, Ready, Running, Blocked, Review, Done, Archived}

// The kinds of workspace, which is the working directory of a task's worker. A scratch directory is removed when the task is
// done. A worktree is a linked git worktree. A dir is an existing directory, whose path is in the task.
const (
	WorkspaceScratch  = "scratch"
	WorkspaceWorktree = "worktree"
	WorkspaceDir      = "dir"
)

// Task is a row of the table tasks, with a field for each column. Times are in seconds since 1970. A zero time, a zero number and
// an empty string stand for null, unless the field is a pointer.
type Task struct {
	ID                  string   `json:"id" sql:"TEXT PRIMARY KEY"`
	Title               string   `json:"title" sql:"TEXT NOT NULL"`
	Body                string   `json:"body" sql:"TEXT"`
	Assignee            string   `json:"assignee" sql:"TEXT"`
	Status              Status   `json:"status" sql:"TEXT NOT NULL"`
	Priority            int64    `json:"priority" sql:"INTEGER DEFAULT 0"`
	CreatedBy           string   `json:"created_by" sql:"TEXT"`
	CreatedAt           int64    `json:"created_at" sql:"INTEGER NOT NULL"`
	StartedAt           int64    `json:"started_at" sql:"INTEGER"` // Time of the first start.
	CompletedAt         int64    `json:"completed_at" sql:"INTEGER"`
	WorkspaceKind       string   `json:"workspace_kind" sql:"TEXT NOT NULL DEFAULT 'scratch'"`
	WorkspacePath       string   `json:"workspace_path" sql:"TEXT"`
	Branch              string   `json:"branch_name" sql:"TEXT"`
	ClaimLock           string   `json:"claim_lock" sql:"TEXT"` // host:pid of the claimer; this package adds .RUN, see [lockOf].
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
	Metadata          string `json:"metadata" sql:"TEXT"` // Metadata as JSON, or empty.
	Error             string `json:"error" sql:"TEXT"`
}

// Event is one entry of a task's history. IDs only grow, so a reader can continue after the last ID that it has read.
type Event struct {
	ID        int64  `json:"id" sql:"INTEGER PRIMARY KEY AUTOINCREMENT"`
	TaskID    string `json:"task_id" sql:"TEXT NOT NULL"`
	RunID     int64  `json:"run_id" sql:"INTEGER"`
	Kind      string `json:"kind" sql:"TEXT NOT NULL"`
	Payload   string `json:"payload" sql:"TEXT"` // Payload as JSON, or empty.
	CreatedAt int64  `json:"created_at" sql:"INTEGER NOT NULL"`
}

// Comment is a comment on a task.
type Comment struct {
	ID        int64  `json:"id" sql:"INTEGER PRIMARY KEY AUTOINCREMENT"`
	TaskID    string `json:"task_id" sql:"TEXT NOT NULL"`
	Author    string `json:"author" sql:"TEXT NOT NULL"`
	Body      string `json:"body" sql:"TEXT NOT NULL"`
	CreatedAt int64  `json:"created_at" sql:"INTEGER NOT NULL"`
}

// ErrNoTask means that the board has no task with the given id.
var ErrNoTask = errors.New("no such task")

// ErrRunning means that a worker has the task. The caller must wait, or reclaim the task first.
var ErrRunning = errors.New("currently running")

// InvalidError means that the caller gave a wrong value. A second try with the same value fails too.
type InvalidError string

func (e InvalidError) Error() string { return string(e) }

func invalidf(format string, args ...any) error { return InvalidError(fmt.Sprintf(format, args...)) }

// HostError means that the runner's host, for instance PID 1, can't start any worker now. The task is not at fault, so the
// dispatcher releases the claim without counting a failure. If MayHaveStarted is true, the worker may start in spite of the
// error. The dispatcher then keeps the claim until it knows the worker's state.
type HostError struct {
	Err            error
	MayHaveStarted bool
}

func (e *HostError) Error() string { return e.Err.Error() }

// Unwrap returns the cause, for [errors.Is] and [errors.As].
func (e *HostError) Unwrap() error { return e.Err }

// CorruptError means that a file isn't a sound database. The file was not changed.
type CorruptError struct {
	Path   string
	Backup string // Path of a copy for a repair; empty if none was made.
	Reason string
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("cannot open board %s: %s", e.Path, e.Reason)
	if e.Backup != "" {
		s += "; a copy is in " + e.Backup
	}
	return s
}

// TickResult lists the changes of one pass. Its JSON has the form of the agent's own command, which other programs parse. Each
// list of strings contains task ids.
type TickResult struct {
	Reclaimed         int           `json:"reclaimed"`          // Number of claims that were released because they had expired.
	Crashed           []string      `json:"crashed"`            // Tasks whose worker crashed, or exited without a result.
	TimedOut          []string      `json:"timed_out"`          // Tasks over their maximum runtime.
	Stale             []string      `json:"stale"`              // Tasks that ran for a long time without a heartbeat.
	AutoBlocked       []string      `json:"auto_blocked"`       // Tasks that were blocked at the failure limit.
	Promoted          int           `json:"promoted"`           // Number of todo and blocked tasks that became ready.
	Spawned           []SpawnedTask `json:"spawned"`            // Started tasks; in a dry run, tasks that would be started.
	SkippedUnassigned []string      `json:"skipped_unassigned"` // Tasks without an assignee: an operator must act.
	// Tasks whose assignee isn't a profile, but for instance a person.
	SkippedNonspawnable []string      `json:"skipped_nonspawnable"`
	SkippedCapped       []CappedTask  `json:"skipped_per_profile_capped"` // Tasks whose profile already has the maximum number of workers.
	AutoAssigned        []string      `json:"auto_assigned_default"`      // Tasks that got the default assignee, or would get it.
	RespawnGuarded      []GuardedTask `json:"respawn_guarded"`            // Tasks that the respawn guard held back.
	RateLimited         []string      `json:"rate_limited"`               // Tasks whose worker reached a rate limit; ready again, without a failure.
	SkippedLocked       bool          `json:"skipped_locked"`             // Whether another dispatcher had the tick lock, so that this pass did nothing.
	// Tasks that were due but not started, for a reason that the other fields don't show.
	DueNotStarted int        `json:"-"`
	DepartedAlive int        `json:"-"` // Number of living workers whose attempt is over.
	AliveWorkers  int        `json:"-"` // Number of workers of running tasks that the runner reports as alive.
	EndedRuns     []EndedRun `json:"-"` // Workers whose end this pass recorded.
	// tasks whose worker ended for a reason outside the task; ready again, not a failure
	Released     []string      `json:"-"`
	FailedSpawns []FailedSpawn `json:"-"` // Workers that couldn't be started, with the reasons.
}

// SpawnedTask is a task whose worker was started.
type SpawnedTask struct {
	Task      string `json:"task_id"`
	Assignee  string `json:"assignee"`
	Workspace string `json:"workspace"`
}

// CappedTask is a task that waits because its profile already has as many running workers as allowed.
type CappedTask struct {
	Task     string `json:"task_id"`
	Assignee string `json:"assignee"`
	Current  int    `json:"current"` // Number of running workers of the profile at that time.
}

// GuardedTask is a task that the respawn guard holds back, because another attempt would fail again or repeat finished work.
type GuardedTask struct {
	Task   string `json:"task_id"`
	Reason string `json:"reason"`
}

// EndedRun describes how the worker of a run ended, as far as the runner knows.
type EndedRun struct {
	Task    string
	Profile string
	Outcome string
	Exit    Exit
}

// FailedSpawn is a worker that couldn't be started.
type FailedSpawn struct {
	Task  string
	Error string
}

// The MarshalJSON methods below write null for a column that is null in the file. The agent's own commands also write null, and
// programs that parse either output rely on it.

// MarshalJSON implements [json.Marshaler].
func (t Task) MarshalJSON() ([]byte, error) { return marshalRow(tasksTable, t), nil }

// MarshalJSON implements [json.Marshaler].
func (r Run) MarshalJSON() ([]byte, error) { return marshalRow(runsTable, r), nil }

// MarshalJSON implements [json.Marshaler].
func (e Event) MarshalJSON() ([]byte, error) { return marshalRow(eventsTable, e), nil }

// marshalRow returns a row of a table as a JSON object whose keys are the column names.
func marshalRow(t table, row any) []byte {
	var o jsonObject
	for i, c := range t.columns {
		field := reflect.ValueOf(row).Field(i)
		value := field.Interface()
		switch column := field.String(); {
		case field.Kind() == reflect.Slice:
			value = append([]string{}, value.([]string)...)
		case field.IsZero() && (c.definition == sqlText || c.definition == sqlInteger):
			value = nil
		case (c.name == "payload" || c.name == "metadata") && json.Valid([]byte(column)):
			value = json.RawMessage(column)
		}
		o = append(o, jsonMember{c.name, value})
	}
	return []byte(encodeLikePython(o))
}

// jsonMember is one member of a [jsonObject].
type jsonMember struct {
	key   string
	value any
}

// jsonObject is a JSON object that keeps the order of its members. The board's other writers keep the order too, so that equal
// payloads are equal texts.
type jsonObject []jsonMember

// with returns a copy of the object with members appended.
func (o jsonObject) with(more ...jsonMember) jsonObject { return append(slices.Clip(o), more...) }

// MarshalJSON implements [json.Marshaler].
func (o jsonObject) MarshalJSON() ([]byte, error) {
	b := bytes.NewBufferString("{")
	for i, p := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(encodeLikePython(p.key) + ":" + encodeLikePython(p.value))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// encodeLikePython returns a value as JSON in the form of Python's json.dumps: with a space after each comma and colon, and in
// ASCII. The other writers of the board use that form.
func encodeLikePython(v any) string {
	var compact bytes.Buffer
	e := json.NewEncoder(&compact)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic("kanban: no JSON for this type: " + err.Error())
	}
	var b strings.Builder
	quoted, escaped := false, false
	for _, r := range strings.TrimSuffix(compact.String(), "\n") {
		if r >= 0x7f {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, "\\u%04x", unit)
			}
			continue
		}
		if b.WriteRune(r); !quoted && (r == ',' || r == ':') {
			b.WriteByte(' ')
		}
		quoted = quoted != (r == '"' && !escaped)
		escaped = r == '\\' && !escaped
	}
	return b.String()
}

// nilIfZero returns nil if v is the zero value of its type, and v otherwise.
func nilIfZero[T comparable](v T) any {
	if v == *new(T) {
		return nil
	}
	return v
}

// truncate returns the first n characters of a string.
func truncate(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}
