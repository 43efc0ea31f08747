package kanban

import "encoding/json"

// What is null in the file is null in JSON: readers in other languages ask for that.

// MarshalJSON implements [json.Marshaler].
func (t Task) MarshalJSON() ([]byte, error) {
	var skills any
	if len(t.Skills) > 0 {
		skills = t.Skills
	}
	return []byte(encode(object{
		{"id", t.ID},
		{"title", t.Title},
		{"body", orNull(t.Body)},
		{"assignee", orNull(t.Assignee)},
		{"status", string(t.Status)},
		{"priority", t.Priority},
		{"created_by", orNull(t.CreatedBy)},
		{"created_at", t.CreatedAt},
		{"started_at", timeOrNull(t.StartedAt)},
		{"completed_at", timeOrNull(t.CompletedAt)},
		{"workspace_kind", t.WorkspaceKind},
		{"workspace_path", orNull(t.WorkspacePath)},
		{"branch_name", orNull(t.Branch)},
		{"claim_lock", orNull(t.ClaimLock)},
		{"claim_expires", timeOrNull(t.ClaimExpires)},
		{"tenant", orNull(t.Tenant)},
		{"result", orNull(t.Result)},
		{"idempotency_key", orNull(t.IdempotencyKey)},
		{"consecutive_failures", t.ConsecutiveFailures},
		{"worker_pid", timeOrNull(int64(t.WorkerPID))},
		{"last_failure_error", orNull(t.LastFailureError)},
		{"max_runtime_seconds", t.MaxRuntimeSeconds},
		{"last_heartbeat_at", timeOrNull(t.LastHeartbeatAt)},
		{"current_run_id", timeOrNull(t.CurrentRunID)},
		{"workflow_template_id", orNull(t.WorkflowTemplateID)},
		{"current_step_key", orNull(t.CurrentStepKey)},
		{"skills", skills},
		{"model_override", orNull(t.ModelOverride)},
		{"max_retries", t.MaxRetries},
		{"goal_mode", t.GoalMode},
		{"goal_max_turns", t.GoalMaxTurns},
		{"session_id", orNull(t.SessionID)},
		{"due_at", timeOrNull(t.DueAt)},
	})), nil
}

// MarshalJSON implements [json.Marshaler].
func (r Run) MarshalJSON() ([]byte, error) {
	return []byte(encode(object{
		{"id", r.ID},
		{"task_id", r.TaskID},
		{"profile", orNull(r.Profile)},
		{"step_key", orNull(r.StepKey)},
		{"status", r.Status},
		{"claim_lock", orNull(r.ClaimLock)},
		{"claim_expires", timeOrNull(r.ClaimExpires)},
		{"worker_pid", timeOrNull(int64(r.WorkerPID))},
		{"max_runtime_seconds", r.MaxRuntimeSeconds},
		{"last_heartbeat_at", timeOrNull(r.LastHeartbeatAt)},
		{"started_at", r.StartedAt},
		{"ended_at", timeOrNull(r.EndedAt)},
		{"outcome", orNull(r.Outcome)},
		{"summary", orNull(r.Summary)},
		{"metadata", embedded(r.Metadata)},
		{"error", orNull(r.Error)},
	})), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (r *Run) UnmarshalJSON(data []byte) error {
	type plain Run
	in := struct {
		*plain
		Metadata json.RawMessage `json:"metadata"`
	}{plain: (*plain)(r)}
	err := json.Unmarshal(data, &in)
	r.Metadata = columnOf(in.Metadata)
	return err
}

// MarshalJSON implements [json.Marshaler].
func (e Event) MarshalJSON() ([]byte, error) {
	return []byte(encode(object{
		{"id", e.ID},
		{"task_id", e.TaskID},
		{"run_id", timeOrNull(e.RunID)},
		{"kind", e.Kind},
		{"payload", embedded(e.Payload)},
		{"created_at", e.CreatedAt},
	})), nil
}

// UnmarshalJSON implements [json.Unmarshaler].
func (e *Event) UnmarshalJSON(data []byte) error {
	type plain Event
	in := struct {
		*plain
		Payload json.RawMessage `json:"payload"`
	}{plain: (*plain)(e)}
	err := json.Unmarshal(data, &in)
	e.Payload = columnOf(in.Payload)
	return err
}

// verbatim is JSON already.
type verbatim string

// embedded puts JSON from a column into JSON: as it is, as null where there is none, as text where it is broken.
func embedded(column string) any {
	switch {
	case column == "":
		return nil
	case json.Valid([]byte(column)):
		return verbatim(column)
	default:
		return column
	}
}

func columnOf(raw json.RawMessage) string {
	if string(raw) == "null" {
		return ""
	}
	return string(raw)
}
