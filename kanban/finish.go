package kanban

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/samber/lo"
)

// Completion is the report of a worker that completes a task. If Run is set, it must be the task's
// current run; otherwise nothing changes.
type Completion struct {
	Result, Summary string
	Metadata        string   // Metadata as a JSON object; empty: none.
	CreatedCards    []string // IDs of tasks that the worker says it has created; Complete checks them.
	Artifacts       []string
	Run             int64
}

// changeStatus changes a task's status to the parameter to, and clears the claim. more is SQL that sets further columns, with
// the arguments args. It returns errNothingToCommit if the list from doesn't contain the task's status, or if run is set and
// isn't the task's current run.
func (t *writeTx) changeStatus(task Task, from []Status, to Status, run int64, more string, args ...any) error {
	if !slices.Contains(from, task.Status) || run != 0 && run != task.CurrentRunID {
		return errNothingToCommit
	}
	set := "status = ?, claim_lock = NULL, claim_expires = NULL, worker_pid = NULL, current_run_id = NULL" + more
	t.exec("UPDATE tasks SET "+set+" WHERE id = ?", append(append([]any{to}, args...), task.ID)...)
	return nil
}

// closeOrAddRun closes the task's current run with the values in e, and returns the run's id. If the task has no current run,
// it adds a run with a duration of zero, because the summary and the metadata in e would otherwise be lost.
func (t *writeTx) closeOrAddRun(task Task, e runResult) (run int64) {
	if task.CurrentRunID == 0 && e.summary == "" && e.metadata == "" {
		return 0
	}
	if run = task.CurrentRunID; run == 0 {
		run = t.insert("INSERT INTO task_runs (task_id, profile, step_key, status, started_at) VALUES (?, ?, ?, ?, ?)",
			task.ID, nilIfZero(task.Assignee), nilIfZero(task.CurrentStepKey), e.outcome, t.now)
	}
	t.closeRun(run, e)
	return run
}

// Complete finishes a task and promotes the tasks that waited for it. It returns false if the task's status does not allow
// that, or if c.Run is set and isn't the task's current run. If c.CreatedCards contains a task that the worker didn't create,
// Complete only records an event and returns an error.
func (s *Store) Complete(ctx context.Context, now time.Time, id string, c Completion) (done bool, err error) {
	summary := cmp.Or(c.Summary, c.Result)
	var phantom error
	done, err = s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if c.Run != 0 && c.Run != task.CurrentRunID {
			return errNothingToCommit
		}
		// phantoms are the tasks that the worker did not create, although it says so.
		verified, phantoms := lo.FilterReject(c.CreatedCards, func(card string, _ int) bool {
			return queryFirstInTx[bool](t, `SELECT EXISTS (SELECT 1 FROM tasks WHERE id = ? AND (created_by IN (NULLIF(?, ''), ?)
				OR EXISTS (SELECT 1 FROM task_links WHERE parent_id = ? AND child_id = tasks.id)))`, card, task.Assignee, task.ID, task.ID)
		})
		if len(phantoms) > 0 {
			phantom = fmt.Errorf("cannot complete %s: it did not create %q; name only tasks that it created", id, phantoms)
			t.addEvent(id, task.CurrentRunID, "completion_blocked_hallucination", jsonObject{
				{"phantom_cards", phantoms}, {"verified_cards", verified}, {"summary_preview", nilIfZero(truncate(firstLine(summary), 200))},
			})
			return nil
		}
		err := t.changeStatus(task, []Status{Running, Ready, Blocked}, Done, c.Run,
			", result = ?, completed_at = max(?, COALESCE(started_at, 0)), consecutive_failures = 0", nilIfZero(c.Result), t.now)
		if err != nil {
			return err
		}
		run := t.closeOrAddRun(task, runResult{outcome: "completed", summary: summary, metadata: c.Metadata})
		payload := jsonObject{{"result_len", utf8.RuneCountInString(c.Result)}, {"summary", nilIfZero(truncate(firstLine(summary), 400))}}
		if len(verified) > 0 {
			payload = payload.with(jsonMember{"verified_cards", verified})
		}
		if len(c.Artifacts) > 0 {
			payload = payload.with(jsonMember{"artifacts", c.Artifacts})
		}
		t.addEvent(id, run, "completed", payload)
		t.warnUnknownReferences(id, run, c)
		t.promote(DefaultFailureLimit, childrenCondition, id)
		return nil
	})
	if err == nil && phantom != nil {
		return false, phantom
	}
	if done {
		s.removeScratchWorkspaces(ctx, id)
	}
	return done, err
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

var taskIDPattern = regexp.MustCompile(`\bt_[0-9a-f]{8,}\b`)

// warnUnknownReferences adds an event if the summary or the result mentions ids of tasks that don't exist. The event warns
// people who read the task's history.
func (t *writeTx) warnUnknownReferences(id string, run int64, c Completion) {
	for _, text := range [][2]string{{"summary", c.Summary}, {"result", c.Result}} {
		refs := lo.Uniq(taskIDPattern.FindAllString(text[1], -1))
		known := queryAllInTx[string](t, "SELECT id FROM tasks WHERE id IN (SELECT value FROM json_each(?))", encodeLikePython(refs))
		if unknown := lo.Without(refs, known...); len(unknown) > 0 {
			t.addEvent(id, run, "suspected_hallucinated_references", jsonObject{{"phantom_refs", unknown}, {"source", text[0]}})
			return
		}
	}
}

// Block blocks a task until it is unblocked. If run is set and isn't the task's current run, Block changes nothing and
// returns false.
func (s *Store) Block(ctx context.Context, now time.Time, id, reason string, run int64) (bool, error) {
	return s.suspendTask(ctx, now, id, reason, run, Blocked, "blocked", []Status{Running, Ready})
}

// Schedule gives a task the status scheduled, in which no dispatcher starts it. run has the same meaning as in [Store.Block].
func (s *Store) Schedule(ctx context.Context, now time.Time, id, reason string, run int64) (bool, error) {
	return s.suspendTask(ctx, now, id, reason, run, Scheduled, "scheduled", []Status{Todo, Ready, Running, Blocked})
}

func (s *Store) suspendTask(ctx context.Context, now time.Time, id, reason string, run int64, to Status, kind string, from []Status) (bool, error) {
	return s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if err := t.changeStatus(task, from, to, run, ""); err != nil {
			return err
		}
		run := t.closeOrAddRun(task, runResult{outcome: string(to), summary: reason})
		t.addEvent(id, run, kind, jsonObject{{"reason", nilIfZero(reason)}})
		return nil
	})
}

// Unblock returns a blocked or scheduled task to ready, or to todo if it still waits for a parent.
func (s *Store) Unblock(ctx context.Context, now time.Time, id string) (bool, error) {
	return s.updateTask(ctx, now, id, func(t *writeTx, task Task) error {
		if task.Status != Blocked && task.Status != Scheduled {
			return errNothingToCommit
		}
		t.closeLeakedRun(task)
		to, payload := Ready, jsonObject(nil)
		if t.hasUnfinishedParent(id) {
			to, payload = Todo, jsonObject{{"status", string(Todo)}}
		}
		t.exec("UPDATE tasks SET status = ?, consecutive_failures = 0, last_failure_error = NULL WHERE id = ?", to, id)
		t.addEvent(id, 0, "unblocked", payload)
		return nil
	})
}

// PromoteOptions holds the options for [Store.Promote]. Force ignores unfinished parents. DryRun only checks whether the
// promotion would succeed.
type PromoteOptions struct {
	Actor, Reason string
	Force, DryRun bool
}

// Promote makes a todo or blocked task ready. If that is not allowed, it returns an error with the reason.
func (s *Store) Promote(ctx context.Context, now time.Time, id string, p PromoteOptions) error {
	return s.write(ctx, now, func(t *writeTx) error {
		task, err := readTask(ctx, t.conn, id, tasksWithoutBody)
		switch {
		case err != nil:
			return fmt.Errorf("cannot promote %s: %w", id, err)
		case task.Status != Todo && task.Status != Blocked:
			return fmt.Errorf("cannot promote %s: it is %s; only todo and blocked tasks can be promoted", id, task.Status)
		case !p.Force && t.hasUnfinishedParent(id):
			return fmt.Errorf("cannot promote %s: it waits for unfinished parents; force it to ignore them", id)
		case p.DryRun:
			return errNothingToCommit
		}
		t.closeLeakedRun(task)
		t.exec("UPDATE tasks SET status = 'ready' WHERE id = ?", id)
		t.addEvent(id, 0, "promoted_manual", jsonObject{{"actor", nilIfZero(p.Actor)}, {"reason", nilIfZero(p.Reason)}, {"forced", p.Force}})
		return nil
	})
}

// promotableCondition is the SQL condition under which the promotion pass makes a todo or blocked task ready. Its parameter is
// the failure limit.
//
// A sticky block stays until a person ends it: the task's latest `blocked` or `unblocked` event is then `blocked`. A block at
// the failure limit has no such event, so the task becomes ready when the limit is raised.
//
// The unary plus keeps SQLite from using the index on status. If a caller names a few tasks, SQLite would otherwise use that
// index and read all waiting tasks.
const promotableCondition = `(+status = 'todo' OR +status = 'blocked'
		AND consecutive_failures < COALESCE(max_retries, ?)
		AND COALESCE((SELECT e.kind FROM task_events e WHERE e.task_id = tasks.id AND e.kind IN ('blocked', 'unblocked')
			ORDER BY e.id DESC LIMIT 1), '') <> 'blocked')
	AND NOT ` + unfinishedParentCondition

// RecomputeReady is the promotion pass: it makes every todo or blocked task ready that may start now (see
// [promotableCondition]). It returns the number of these tasks.
func (s *Store) RecomputeReady(ctx context.Context, now time.Time, failureLimit int) (promoted int, err error) {
	some, err := queryFirst[bool](ctx, s.db, "SELECT EXISTS (SELECT 1 FROM tasks WHERE "+promotableCondition+" AND "+waitingTasksCondition+")", failureLimit)
	if err != nil || !some { // Most passes have nothing to promote, so don't take the write lock.
		return 0, err
	}
	err = s.write(ctx, now, func(t *writeTx) error {
		promoted = t.promote(failureLimit, waitingTasksCondition)
		return nil
	})
	return promoted, err
}

// promote makes every [promotableCondition] task ready that meets an SQL condition, and returns the number of these tasks.
func (t *writeTx) promote(failureLimit int, condition string, args ...any) int {
	ids := queryAllInTx[string](t, "UPDATE tasks SET status = 'ready' WHERE "+promotableCondition+" AND "+condition+" RETURNING id", append([]any{failureLimit}, args...)...)
	for _, id := range ids {
		t.addEvent(id, 0, "promoted", nil)
	}
	return len(ids)
}

// Conditions for [tx.promote]: every waiting task, or only the tasks that wait for one parent.
const (
	waitingTasksCondition = "status IN ('todo', 'blocked')"
	childrenCondition     = "id IN (SELECT child_id FROM task_links WHERE parent_id = ?)"
)

// addEvent appends an event to a task's history. A nil payload is stored as null. A run of 0 means that the event belongs to no
// run.
func (t *writeTx) addEvent(task string, run int64, kind string, payload jsonObject) {
	var text any
	if payload != nil {
		text = encodeLikePython(payload)
	}
	t.exec("INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?, ?, ?, ?, ?)", task, nilIfZero(run), kind, text, t.now)
}

// runResult holds the values that [writeTx.closeRun] stores in a run.
type runResult struct {
	outcome, err      string
	summary, metadata string
}

// closeRun closes a run if it is open. It sets the run's status to the outcome, or to "done" if the outcome is "completed".
// The caller clears the task's current_run_id.
//
// closeRun never stores an end that is before the start. The time t.now is from before the wait for the database's lock.
// During that wait, another process may have started the run, or the clock may have been set.
func (t *writeTx) closeRun(run int64, e runResult) {
	if run == 0 {
		return
	}
	t.exec(`UPDATE task_runs SET status = iif(?1 = 'completed', 'done', ?1), outcome = ?1, summary = ?2, error = ?3, metadata = ?4,
			ended_at = max(?5, started_at), claim_lock = NULL, claim_expires = NULL, worker_pid = NULL
		WHERE id = ?6 AND ended_at IS NULL`,
		e.outcome, nilIfZero(e.summary), nilIfZero(e.err), nilIfZero(e.metadata), t.now, run)
}

// closeLeakedRun closes a run that was left open by mistake: the task is no longer running, although it still refers to the run.
func (t *writeTx) closeLeakedRun(task Task) {
	t.closeRun(task.CurrentRunID, runResult{outcome: "reclaimed", err: "the task had left the run behind"})
	t.exec("UPDATE tasks SET current_run_id = NULL WHERE id = ? AND current_run_id = ?", task.ID, task.CurrentRunID)
}
