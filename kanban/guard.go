package kanban

import (
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	authTrouble = regexp.MustCompile(`(?i)\b(quota|rate[ _-]?limit|429|403|auth\w*|unauthorized|forbidden|billing|subscription|access denied|permission denied|invalid api key)\b`)
	pullRequest = regexp.MustCompile(`https://github\.com/[^/\s]+/[^/\s]+/pull/\d+`)
)

// The reasons of the respawn guard.
const (
	guardCooldown = "rate_limit_cooldown"
	guardAuth     = "blocker_auth"
	guardSuccess  = "recent_success"
	guardPR       = "active_pr"
	guardBackoff  = "backoff" // of this dispatcher only, and without an event
)

// rateLimitedText marks a task whose worker hit a quota wall. It is no failure, and the task waits for the cooldown only. If a
// later attempt ended without an error of its own, this text must not hold the task back for ever.
const rateLimitedText = "exited rate-limited (quota wall)"

// attempt is how an attempt has ended, and how long it holds back the next one.
type attempt struct {
	Task     string
	Run      int64
	Outcome  string
	At       int64
	Failures int64 // of the task
}

// backoffMost bounds how often the time between two attempts doubles.
const backoffMost = 4

// until is when the task of an attempt that has ended may be started again. Jitter keeps tasks apart that failed for one reason.
func (p *pass) until(e attempt) int64 {
	var wait int64
	switch e.Outcome {
	case "rate_limited":
		wait = envSeconds(p.Store.opt.Env, "HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS", 0, DefaultCooldown)
	case "crashed", "timed_out", "spawn_failed", "stale":
		wait = int64(p.Backoff/time.Second) << min(max(e.Failures-1, 0), backoffMost)
	}
	if p.Backoff > 0 && wait > 0 {
		h := fnv.New32a()
		fmt.Fprint(h, e.Task, e.Run)
		wait += wait * int64(h.Sum32()%100) / 500
	}
	if e.At > p.now+clockSlack { // the clock has gone back since; the age is unknown
		return p.now
	}
	return e.At + wait
}

// guard says why a ready task should not be started now, or nothing. Another attempt would hit the same wall, or repeat work that is
// done. It clears itself by time only; an operator clears blocker_auth by unblocking or reassigning.
func (p *pass) guard(task string, review bool) (string, error) {
	type state struct {
		attempt
		Failure string
		Success int64
	}
	s, err := first[state](p.ctx, p.Store.db, `SELECT t.id, COALESCE(r.id, 0), COALESCE(r.outcome, ''), COALESCE(CAST(r.ended_at AS INTEGER), 0), CAST(t.consecutive_failures AS INTEGER),
			COALESCE(t.last_failure_error, ''), COALESCE((SELECT max(CAST(s.ended_at AS INTEGER)) FROM task_runs s WHERE s.task_id = t.id AND s.outcome = 'completed'), 0)
		FROM tasks t LEFT JOIN task_runs r ON r.id = (SELECT n.id FROM task_runs n WHERE n.task_id = t.id AND n.ended_at IS NOT NULL
			ORDER BY n.ended_at DESC, n.id DESC LIMIT 1)
		WHERE t.id = ?`, task)
	waits := p.now < p.until(s.attempt)
	switch {
	case err != nil || s.Task == "":
		return "", err
	case s.Outcome == "rate_limited" && waits:
		return guardCooldown, nil
	case waits:
		return guardBackoff, nil
	case review || s.Outcome == "rate_limited":
		return "", nil
	case authTrouble.MatchString(s.Failure) && !strings.Contains(s.Failure, rateLimitedText):
		return guardAuth, nil
	case s.Success != 0 && p.now-s.Success <= recentSuccessWindow && s.Success <= p.now+clockSlack:
		return guardSuccess, nil
	}
	comments, err := read[string](p.ctx, p.Store.db, `SELECT body FROM task_comments
		WHERE task_id = ? AND created_at > ? AND created_at <= ? AND instr(body, 'https://github.com/') > 0`, task, p.now-activePRWindow, p.now+clockSlack)
	if slices.ContainsFunc(comments, pullRequest.MatchString) {
		return guardPR, nil
	}
	return "", err
}

// guarded notes that a task is held back, once until its next event. A note for each pass would fill the task's history.
func (p *pass) guarded(task, reason string) error {
	p.res.RespawnGuarded = append(p.res.RespawnGuarded, Guarded{task, reason})
	if p.dry || reason == guardBackoff {
		return nil
	}
	payload := object{{"reason", reason}}
	said, err := first[bool](p.ctx, p.Store.db, `SELECT kind = ? AND payload IS ? FROM task_events WHERE task_id = ? ORDER BY id DESC LIMIT 1`,
		"respawn_guarded", encode(payload), task)
	if err != nil || said {
		return err
	}
	return p.write(func(t *tx) error {
		t.event(task, 0, "respawn_guarded", payload)
		return nil
	})
}

// Next is when a pass has work that no change of the board and no end of a worker announces. That is when a claim, a grace, a
// runtime or a cooldown runs out. Zero: never.
func (d *Dispatcher) Next(ctx context.Context, now time.Time) (time.Time, error) {
	p, err := d.observe(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	var next int64
	at := func(t int64) {
		if t = max(t, p.now+1); next == 0 || t < next {
			next = t
		}
	}
	interval := int64(d.Config.interval() / time.Second)
	if d.Backoff > 0 { // whatever else there is to wait for: it serves, and nothing may stand still
		some, err := first[bool](ctx, d.Store.db, "SELECT EXISTS (SELECT 1 FROM tasks WHERE status IN ('ready', 'review', 'running'))")
		if err != nil {
			return time.Time{}, err
		}
		if some {
			at(p.now + interval)
		}
	}
	for _, w := range p.watched {
		if w.ClaimExpires != 0 {
			at(w.ClaimExpires + 1)
		}
		if judged := w.judged(); judged != 0 {
			at(judged)
		}
		if w.WorkerPID != 0 && w.local && w.sight == Unknown && !w.gone {
			at(p.now + interval) // nothing tells when it ends
		}
		if w.WorkerPID != 0 && w.local && w.MaxRuntimeSeconds != nil {
			at(w.since + *w.MaxRuntimeSeconds)
		}
		if limit := int64(d.Config.StaleTimeout / time.Second); limit > 0 {
			silent := w.since + limit + 1
			if w.LastHeartbeatAt != 0 {
				silent = max(silent, w.LastHeartbeatAt+heartbeatStaleAfter)
			}
			at(silent)
		}
	}
	for _, w := range p.leaving {
		at(p.leaves(w))
	}
	if len(p.unanswered) > 0 {
		at(p.now + interval)
	}
	held, err := d.Store.held(ctx, p.now-activePRWindow)
	for _, h := range held {
		end := p.until(h)
		switch h.Outcome {
		case "":
			end = h.At + activePRWindow
		case "completed":
			end = h.At + recentSuccessWindow + 1
		}
		if end > p.now {
			at(end)
		}
	}
	if err != nil || next == 0 {
		return time.Time{}, err
	}
	return time.Unix(next, 0), nil
}

// held are the ends of attempts, and the pull requests with an empty outcome, that may hold back a waiting task: those after a time. It
// may tell too many: a pass that comes too early does nothing. A task that waits for no such reason is looked at now and then all the same.
func (s *Store) held(ctx context.Context, after int64) ([]attempt, error) {
	return read[attempt](ctx, s.db, `SELECT t.id, r.id, r.outcome, CAST(r.ended_at AS INTEGER), CAST(t.consecutive_failures AS INTEGER) FROM tasks t JOIN task_runs r ON r.task_id = t.id
			WHERE t.status IN ('ready', 'review') AND r.outcome IS NOT NULL AND r.ended_at > ?1
		UNION ALL
		SELECT t.id, 0, '', max(CAST(c.created_at AS INTEGER)), 0 FROM tasks t JOIN task_comments c ON c.task_id = t.id
			WHERE t.status = 'ready' AND c.created_at > ?1 AND instr(c.body, 'https://github.com/') > 0 GROUP BY t.id`, after)
}
