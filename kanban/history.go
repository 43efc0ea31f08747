package kanban

// event appends to a task's history. A nil payload is null; a run of 0 is none.
func (t *tx) event(task string, run int64, kind string, payload object) {
	var text any
	if payload != nil {
		text = encode(payload)
	}
	t.exec("INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?, ?, ?, ?, ?)", task, orNull(run), kind, text, t.now)
}

// ending is how a run is closed.
type ending struct {
	status, outcome string
	summary, err    string
	metadata        string
}

// as is an ending whose status and outcome are the same word.
func as(outcome, err string) ending { return ending{status: outcome, outcome: outcome, err: err} }

// closeRun closes a run that is open. The pointer at it goes with the change of its task. No run ends before it began. The time
// of this transaction was read before the wait for the lock, in which another process may have begun the run; and clocks step.
func (t *tx) closeRun(run int64, e ending) {
	if run == 0 {
		return
	}
	t.exec(`UPDATE task_runs SET status = ?, outcome = ?, summary = ?, error = ?, metadata = ?, ended_at = max(?, started_at),
			claim_lock = NULL, claim_expires = NULL, worker_pid = NULL
		WHERE id = ? AND ended_at IS NULL`,
		e.status, e.outcome, orNull(e.summary), orNull(e.err), orNull(e.metadata), t.now, run)
}

// closeLeaked closes a run that a task which isn't running still points at.
func (t *tx) closeLeaked(task Task) {
	t.closeRun(task.CurrentRunID, as("reclaimed", "the task had left the run behind"))
	t.exec("UPDATE tasks SET current_run_id = NULL WHERE id = ? AND current_run_id = ?", task.ID, task.CurrentRunID)
}
