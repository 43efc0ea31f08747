package kanban

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// ttl is how long a claim lasts: what was asked for, else HERMES_KANBAN_CLAIM_TTL_SECONDS, else fifteen minutes.
func (s *Store) ttl(asked time.Duration) int64 {
	if asked > 0 {
		return max(1, int64(asked/time.Second))
	}
	return envSeconds(s.opt.Env, "HERMES_KANBAN_CLAIM_TTL_SECONDS", 1, DefaultTTL)
}

// envSeconds reads a number of seconds; whatever is less than the least or no number means the default.
func envSeconds(env Env, name string, least int64, otherwise time.Duration) int64 {
	n, err := strconv.ParseInt(env.trimmed(name), 10, 64)
	if err != nil || n < least {
		return int64(otherwise / time.Second)
	}
	return n
}

// Claim takes a ready task for a worker. False: somebody else has it, it isn't ready, or a parent isn't finished, which sends it
// back to todo. A ttl of 0 is the default one. The task that is returned is without its body.
func (s *Store) Claim(ctx context.Context, now time.Time, id string, ttl time.Duration) (Task, bool, error) {
	return s.claim(ctx, now, id, claimOptions{ttl: ttl, from: Ready})
}

// lockOf is the lock of one claim: host:pid of the claimer, as every writer of the board has it, and the run. No two claims share one, so
// a compare-and-swap on a lock that was seen can't meet a later claim of the same process.
func lockOf(claimer string, run int64) string { return claimer + "." + strconv.FormatInt(run, 10) }

// claimant is the process that made a claim, host:pid.
func claimant(lock string) string {
	colon := strings.LastIndexByte(lock, ':')
	if dot := strings.IndexByte(lock[colon+1:], '.'); colon >= 0 && dot >= 0 {
		return lock[:colon+1+dot]
	}
	return lock
}

type claimOptions struct {
	ttl     time.Duration
	from    Status
	profile string // whose it must still be; empty: anybody's
	scratch string // where scratch workspaces are: the path goes with the claim and costs no transaction of its own
}

func (s *Store) claim(ctx context.Context, now time.Time, id string, o claimOptions) (task Task, won bool, err error) {
	from := o.from
	expires := now.Unix() + s.ttl(o.ttl)
	_, err = s.change(ctx, now, id, func(t *tx, found Task) (err error) {
		task = found
		if task.Status != from || task.ClaimLock != "" || o.profile != "" && o.profile != task.Assignee {
			return errNothing
		}
		if from == Ready && t.waits(id) {
			t.exec("UPDATE tasks SET status = 'todo' WHERE id = ? AND status = 'ready'", id)
			t.event(id, 0, "claim_rejected", object{{"reason", "parents_not_done"}})
			return nil
		}
		t.closeLeaked(task)
		run := t.insert(`INSERT INTO task_runs (task_id, profile, step_key, status, claim_expires, max_runtime_seconds, started_at)
			VALUES (?, ?, ?, 'running', ?, ?, ?)`,
			id, orNull(task.Assignee), orNull(task.CurrentStepKey), expires, task.MaxRuntimeSeconds, t.now)
		lock := lockOf(s.Claimer(), run)
		t.exec("UPDATE task_runs SET claim_lock = ? WHERE id = ?", lock, run)
		rows := t.exec(`UPDATE tasks SET status = 'running', claim_lock = ?1, claim_expires = ?2, started_at = COALESCE(started_at, ?3), current_run_id = ?7,
				workspace_path = COALESCE(NULLIF(workspace_path, ''), CASE WHEN workspace_kind = 'scratch' AND ?5 <> '' THEN ?5 || '/' || id END)
			WHERE id = ?4 AND status = ?6 AND claim_lock IS NULL`, lock, expires, t.now, id, o.scratch, from, run)
		if rows == 0 {
			return errNothing
		}
		payload := object{{"lock", lock}, {"expires", expires}, {"run_id", run}}
		if from == Review {
			payload = payload.with(pair{"source_status", "review"})
		}
		t.event(id, run, "claimed", payload)
		won = true
		task, err = taskByID(ctx, t.conn, id)
		return err
	})
	return task, won && err == nil, err
}

// HeartbeatClaim extends a claim whose lock is given. False: not running, or somebody else's.
func (s *Store) HeartbeatClaim(ctx context.Context, now time.Time, id, lock string, ttl time.Duration) (ok bool, err error) {
	expires := now.Unix() + s.ttl(ttl)
	err = s.write(ctx, now, func(t *tx) error {
		ok = t.extend(id, lock, expires, "")
		return nil
	})
	return ok && err == nil, err
}

// extend moves the end of a claim, of the task and of its run. The condition guards against a claim that has changed hands.
func (t *tx) extend(id, lock string, expires int64, condition string, args ...any) bool {
	rows := t.exec("UPDATE tasks SET claim_expires = ? WHERE id = ? AND status = 'running' AND claim_lock = ?"+condition,
		append([]any{expires, id, lock}, args...)...)
	if rows > 0 {
		t.exec("UPDATE task_runs SET claim_expires = ? WHERE id = (SELECT current_run_id FROM tasks WHERE id = ?) AND ended_at IS NULL", expires, id)
	}
	return rows > 0
}

// HeartbeatWorker notes a sign of life. A run other than 0 must be the current one.
func (s *Store) HeartbeatWorker(ctx context.Context, now time.Time, id, note string, run int64) (bool, error) {
	return s.change(ctx, now, id, func(t *tx, task Task) error {
		if task.Status != Running || run != 0 && run != task.CurrentRunID {
			return errNothing
		}
		t.exec("UPDATE tasks SET last_heartbeat_at = ? WHERE id = ?", t.now, id)
		t.exec("UPDATE task_runs SET last_heartbeat_at = ? WHERE id = ? AND ended_at IS NULL", t.now, task.CurrentRunID)
		var payload object
		if note != "" {
			payload = object{{"note", note}}
		}
		t.event(id, task.CurrentRunID, "heartbeat", payload)
		return nil
	})
}
