package kanban

import (
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strings"
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
)

// rateLimitedText marks a task whose worker hit a quota wall. It is no failure, and the cooldown is what it waits for: if a later
// attempt ended without an error of its own, the words in here must not hold the task back for ever.
const rateLimitedText = "exited rate-limited (quota wall)"

// guard says why a ready task should not be started now, or nothing. Another attempt would hit the same wall, or repeat work that is
// done. It clears itself by time only; an operator clears blocker_auth by unblocking or reassigning.
func (p *pass) guard(task string, onlyCooldown bool) (string, error) {
	var outcome, failure string
	var ended, success int64
	err := p.Store.db.QueryRowContext(p.ctx, `SELECT COALESCE(r.outcome, ''), COALESCE(r.ended_at, 0), COALESCE(t.last_failure_error, ''),
			COALESCE((SELECT max(s.ended_at) FROM task_runs s WHERE s.task_id = t.id AND s.outcome = 'completed'), 0)
		FROM tasks t LEFT JOIN task_runs r ON r.id = (SELECT n.id FROM task_runs n WHERE n.task_id = t.id AND n.ended_at IS NOT NULL
			ORDER BY n.ended_at DESC, n.id DESC LIMIT 1)
		WHERE t.id = ?`, task).Scan(&outcome, &ended, &failure, &success)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if outcome == "rate_limited" {
		if p.now-ended < p.cooldown() {
			return guardCooldown, nil
		}
		return "", nil
	}
	if onlyCooldown {
		return "", nil
	}
	if authTrouble.MatchString(failure) && !strings.Contains(failure, rateLimitedText) {
		return guardAuth, nil
	}
	if success != 0 && p.now-success <= recentSuccessWindow {
		return guardSuccess, nil
	}
	comments, err := column1[string](p.ctx, p.Store.db, `SELECT body FROM task_comments
		WHERE task_id = ? AND created_at > ? AND instr(body, 'https://github.com/') > 0`, task, p.now-activePRWindow)
	if slices.ContainsFunc(comments, pullRequest.MatchString) {
		return guardPR, nil
	}
	return "", err
}

func (p *pass) cooldown() int64 {
	return envSeconds(p.Store.opt.Env, "HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS", 0, DefaultCooldown)
}

// guarded notes that a task is held back, once for as long as nothing else happens to it: an event for each pass would bury its
// history.
func (p *pass) guarded(task, reason string) error {
	p.res.RespawnGuarded = append(p.res.RespawnGuarded, Guarded{task, reason})
	if p.dry {
		return nil
	}
	payload := object{{"reason", reason}}
	var said bool
	err := p.Store.db.QueryRowContext(p.ctx, `SELECT kind = ? AND payload = ? FROM task_events WHERE task_id = ? ORDER BY id DESC LIMIT 1`,
		evGuarded, encode(payload), task).Scan(&said)
	if err != nil && !errors.Is(err, sql.ErrNoRows) || said {
		return err
	}
	return p.write(func(t *tx) error { return t.event(task, 0, evGuarded, payload) })
}
