package kanban

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"regexp"
	"strings"
	"time"

	"github.com/samber/lo"
)

// workerCrash is a task whose worker ended without a result, while the task was still running. The embedded release says what to
// record on the board, and how the task becomes ready again.
type workerCrash struct {
	*observedTask
	claimRelease
	// Whether the cause is known, or another program may have requested the end. Such a crash does not
	// count for minSystemicCrashes.
	hasKnownCause bool
}

// crashReasonGrace is how many seconds the dispatcher waits before it records the end of a worker as a crash. It waits only if
// another program may have asked the worker to end. That program needs about half a second to see the end, and then writes
// the reason on the board. An earlier record of a crash would hide this reason.
const crashReasonGrace = 5

// mayHaveBeenRequested reports whether the worker may have ended because another program asked it to. SIGTERM then killed the
// worker, or the worker caught SIGTERM and exited with 0 or 143.
func (x Exit) mayHaveBeenRequested() bool {
	endedOnRequest := x.Code == 0 && (x.Signal == 0 || x.Signal == sigTerm) || x.Signal == 0 && x.Code == 128+sigTerm
	return !x.DuringShutdown && x.Known && (endedOnRequest || x.Terminated && x.Code != rateLimitedExitCode)
}

// failureCountsFrom returns the time at which the dispatcher may count the end of a worker as a failure, in seconds since 1970.
// Until then, another program may still write a reason on the board, see [crashReasonGrace]. 0 means that there is no need to
// wait.
func (w *observedTask) failureCountsFrom() int64 {
	if w.liveness != Ended || !w.exit.mayHaveBeenRequested() || w.exit.EndedAt.IsZero() {
		return 0
	}
	return w.exit.EndedAt.Unix() + crashReasonGrace
}

// detectCrashed finds workers that have ended without finishing their task, and releases the tasks. If at least
// minSystemicCrashes workers failed in the same way, the cause is probably outside the tasks, so each of these tasks is blocked
// after a single failure.
//
// If the runner has seen how the worker ended, the pass handles the end immediately, unless another program may have requested
// it. If only the missing pid shows the end, the pass ignores it for a grace period after the start, because a new worker may not
// be visible yet.
func (p *boardPass) detectCrashed() error {
	grace := envSeconds(p.Store.opt.Env, "HERMES_KANBAN_CRASH_GRACE_SECONDS", 0, DefaultCrashGrace)
	var crashes []workerCrash
	var again []*observedTask
	for _, w := range p.runningTasks {
		known := w.liveness != Unknown || w.containerGone
		young := p.now >= w.since && p.now-w.since < grace // If the clock was set back, treat no worker as young.
		if w.isHandled || !known && (w.WorkerPID == 0 || !w.isOnThisHost || young) || !p.workerEnded(w) {
			continue
		}
		if at := w.failureCountsFrom(); p.now < at && at-p.now <= crashReasonGrace+1 {
			continue
		}
		if w.liveness == NeverStarted && !w.containerGone && p.mayStart {
			again = append(again, w)
			continue
		}
		crashes = append(crashes, p.classifyEnd(w))
	}
	similar := lo.Filter(crashes, func(c workerCrash, _ int) bool { return c.event == "crashed" && !c.hasKnownCause })
	alike := lo.CountValuesBy(similar, func(c workerCrash) string { return fingerprint(c.reason) })
	for _, c := range crashes {
		if c.countsAsFailure && !c.hasKnownCause && alike[fingerprint(c.reason)] >= minSystemicCrashes {
			c.limitOverride = 1
		}
		if _, err := p.release(c.observedTask, c.claimRelease); err != nil {
			return err
		}
	}
	for _, w := range again {
		if err := p.restartWorker(w); err != nil {
			return err
		}
	}
	return nil
}

// classifyEnd decides what a worker's end means for the task: which event and outcome to record, and whether the end counts as a
// failure of the task.
func (p *boardPass) classifyEnd(w *observedTask) workerCrash {
	pid, x := w.WorkerPID, w.exit
	who := jsonObject{{"pid", pid}, {"claimer", w.ClaimLock}}
	failed := func(event string, extra jsonObject, format string, args ...any) workerCrash {
		return workerCrash{w, claimRelease{
			event: event, outcome: "crashed", reason: fmt.Sprintf(format, args...), payload: who.with(extra...), resultList: &p.res.Crashed, countsAsFailure: true, gaveUpMembers: who,
		}, x.mayHaveBeenRequested()}
	}
	notTheTask := func(format string, args ...any) workerCrash {
		r := p.releaseForReclaim(w, Termination{Attempted: true, Terminated: true}, fmt.Sprintf(format, args...))
		r.resultList = &p.res.Released
		return workerCrash{w, r, true}
	}
	switch {
	case w.containerGone:
		return notTheTask("pid %d went down with its container", pid)
	case w.liveness == NeverStarted:
		return notTheTask("the dispatcher ended before it started the worker")
	case !x.Known:
		return failed("crashed", nil, "pid %d not alive", pid)
	case x.Signal == 0 && x.Code == rateLimitedExitCode: // Store the text as the last failure, so that people see why the task waits.
		why := fmt.Sprintf("pid %d %s; it will be tried again and counts as no failure", pid, rateLimitedText)
		return workerCrash{w, claimRelease{
			event: "rate_limited", outcome: "rate_limited", reason: why, payload: who.with(jsonMember{"exit_code", rateLimitedExitCode}), resultList: &p.res.RateLimited,
			setColumns: ", last_failure_error = ?", setArgs: []any{truncate(why, failureErrorMaxChars)},
		}, true}
	case x.Terminated:
		return notTheTask("pid %d was ended on purpose", pid)
	case x.Signal != 0:
		memory := lo.Ternary(x.OOM, " (out of memory)", "")
		return failed("crashed", jsonObject{{"exit_kind", "signaled"}, {"exit_code", x.Signal}}, "pid %d killed by signal %d%s", pid, x.Signal, memory)
	case x.Code == 0:
		return failed("protocol_violation", jsonObject{{"exit_code", 0}},
			"worker exited cleanly (rc=0) without calling kanban_complete or kanban_block: the task would stay running for ever")
	}
	return failed("crashed", jsonObject{{"exit_kind", "nonzero_exit"}, {"exit_code", x.Code}}, "pid %d exited with code %d", pid, x.Code)
}

var (
	pidPattern        = regexp.MustCompile(`pid \d+`)
	longNumberPattern = regexp.MustCompile(`\d{10,}`)
)

// fingerprint removes pids and times from an error text. Workers that failed in the same way then have equal texts.
func fingerprint(text string) string {
	text = pidPattern.ReplaceAllString(truncate(text, 80), "pid N")
	return strings.ToLower(longNumberPattern.ReplaceAllString(text, "N"))
}

func (d *Dispatcher) failureLimit() int {
	return cmp.Or(max(d.Config.FailureLimit, 0), DefaultFailureLimit)
}

// failureLimitOf returns the number of consecutive failures at which the task is blocked. source says who set the limit:
// "task", or "dispatcher" if the task sets none. The event gave_up shows the source.
func (p *boardPass) failureLimitOf(task Task, r claimRelease) (limit int64, source string) {
	if task.MaxRetries != nil {
		return *task.MaxRetries, "task"
	}
	return int64(cmp.Or(r.limitOverride, p.failureLimit())), "dispatcher"
}

// countFailure adds a failure to a task that this transaction has released. If blocks is true, the task has reached its limit,
// and countFailure also blocks it.
//
// A block at the failure limit isn't sticky: if the limit is raised, the next promotion pass makes the task ready again.
// But a release can lower the limit for one failure (limitOverride). Then the task is blocked although its failures are below the
// ordinary limit, and the next promotion pass of any program would undo the block. To prevent that, countFailure adds a `blocked`
// event, which makes the block sticky for all programs.
func (p *boardPass) countFailure(t *writeTx, task Task, r claimRelease, blocks bool) {
	text := truncate(r.reason, failureErrorMaxChars)
	failures := task.ConsecutiveFailures + 1
	t.exec("UPDATE tasks SET consecutive_failures = ?, last_failure_error = ? WHERE id = ?", failures, text, task.ID)
	if !blocks {
		return
	}
	t.exec("UPDATE tasks SET status = 'blocked' WHERE id = ?", task.ID)
	limit, source := p.failureLimitOf(task, r)
	t.addEvent(task.ID, task.CurrentRunID, "gave_up", jsonObject{
		{"failures", failures}, {"effective_limit", limit}, {"limit_source", source}, {"error", text}, {"trigger_outcome", r.outcome},
	}.with(r.gaveUpMembers...))
	if r.limitOverride > 0 && failures < int64(p.failureLimit()) {
		t.addEvent(task.ID, task.CurrentRunID, "blocked", jsonObject{{"reason", text}})
	}
}

// spawnFailed releases a claimed task whose worker couldn't be started, and counts that as a failure of the task. The parameter
// from is the status in which the task was claimed, and why is the reason.
func (p *boardPass) spawnFailed(task Task, from Status, why error) error {
	text := why.Error()
	ok, err := p.release(&observedTask{Task: task, claimedFrom: from}, claimRelease{
		event: "spawn_failed", outcome: "spawn_failed", reason: text, countsAsFailure: true,
		payload: jsonObject{{"error", truncate(text, failureErrorMaxChars)}, {"failures", task.ConsecutiveFailures + 1}},
	})
	if err != nil {
		return fmt.Errorf("cannot note that %s couldn't be started (%w): %w", task.ID, why, err)
	}
	if ok {
		p.res.FailedSpawns = append(p.res.FailedSpawns, FailedSpawn{task.ID, text})
	}
	return nil
}

// enforceMaxRuntime ends the workers that have run longer than their task's maximum runtime. It releases their tasks and
// counts a failure for each.
func (p *boardPass) enforceMaxRuntime() error {
	over := lo.Filter(p.runningTasks, func(w *observedTask, _ int) bool {
		return !w.isHandled && w.isOnThisHost && w.liveness != Ended && w.WorkerPID != 0 && w.MaxRuntimeSeconds != nil && p.now-w.since >= *w.MaxRuntimeSeconds
	})
	return p.endWorkers(over, "max_runtime_worker_alive", func(w *observedTask, end Termination) error {
		elapsed, limit := p.now-w.since, *w.MaxRuntimeSeconds
		text := fmt.Sprintf("elapsed %s is over the maximum runtime of %s", time.Duration(elapsed)*time.Second, time.Duration(limit)*time.Second)
		_, err := p.release(w, claimRelease{
			event: "timed_out", outcome: "timed_out", reason: text, setColumns: ", last_heartbeat_at = NULL", resultList: &p.res.TimedOut,
			payload:         jsonObject{{"pid", w.WorkerPID}, {"elapsed_seconds", elapsed}, {"limit_seconds", limit}, {"sigkill", end.Killed}},
			countsAsFailure: true, gaveUpMembers: jsonObject{{"pid", w.WorkerPID}},
		})
		return err
	})
}

var (
	authErrorPattern   = regexp.MustCompile(`(?i)\b(quota|rate[ _-]?limit|429|403|auth\w*|unauthorized|forbidden|billing|subscription|access denied|permission denied|invalid api key)\b`)
	pullRequestPattern = regexp.MustCompile(`https://github\.com/[^/\s]+/[^/\s]+/pull/\d+`)
)

// The names of the reasons for which the respawn guard ([boardPass.holdReason]) holds back a ready task. They appear in events
// and in the output of commands.
const (
	guardRateLimit = "rate_limit_cooldown"
	guardAuth      = "blocker_auth"
	guardSuccess   = "recent_success"
	guardActivePR  = "active_pr"
	// The pause of [Dispatcher.Backoff] isn't over. Other dispatchers have no such pause, so no event
	// records it.
	guardBackoff = "backoff"
)

// rateLimitedText is stored as the last failure of a task whose worker has reached a quota. Reaching a quota is not a
// failure: the task only waits for the cooldown. [boardPass.holdReason] must recognise this text, because its word "quota"
// otherwise looks like a problem with credentials. Such a problem would hold the task back until an operator acts.
const rateLimitedText = "exited rate-limited (quota wall)"

// endedAttempt is an attempt that has ended. [boardPass.retryTime] computes from it when the next attempt may start.
type endedAttempt struct {
	Task     string
	Run      int64
	Outcome  string
	EndedAt  int64 // Time of the end, in seconds since 1970.
	Failures int64 // Consecutive failures of the task.
}

// maxBackoffDoublings limits how often the pause between two attempts doubles: at most to 16 times [Dispatcher.Backoff].
const maxBackoffDoublings = 4

// retryTime returns the earliest time for the attempt after e, in seconds since 1970. If a backoff is set, it makes the pause
// up to a fifth longer, by a different part for each attempt. Otherwise tasks that failed together would all restart
// together.
func (p *boardPass) retryTime(e endedAttempt) int64 {
	var wait int64
	switch e.Outcome {
	case "rate_limited":
		wait = envSeconds(p.Store.opt.Env, "HERMES_KANBAN_RATE_LIMIT_COOLDOWN_SECONDS", 0, DefaultRateLimitCooldown)
	case "crashed", "timed_out", "spawn_failed", "stale":
		wait = int64(p.Backoff/time.Second) << min(max(e.Failures-1, 0), maxBackoffDoublings)
	}
	if p.Backoff > 0 && wait > 0 {
		h := fnv.New32a()
		fmt.Fprint(h, e.Task, e.Run)
		wait += wait * int64(h.Sum32()%100) / 500
	}
	if e.EndedAt > p.now+clockSlackSeconds { // The clock was set back since the end, so the age is unknown.
		return p.now
	}
	return e.EndedAt + wait
}

// holdReason is the respawn guard: it holds a task back while another attempt would fail in the same way or repeat finished
// work. It returns the reason, or "" if the task may start now. The reason expires at the time until, in seconds since 1970.
// If until is 0, the reason is blocker_auth and lasts until an operator unblocks or reassigns the task.
func (p *boardPass) holdReason(task string, from Status) (reason string, until int64, err error) {
	type state struct {
		endedAttempt
		Failure string
		Success int64
	}
	s, err := queryFirst[state](p.ctx, p.Store.db, `SELECT t.id, r.id, r.outcome, CAST(r.ended_at AS INTEGER), CAST(t.consecutive_failures AS INTEGER),
			t.last_failure_error, (SELECT max(CAST(s.ended_at AS INTEGER)) FROM task_runs s WHERE s.task_id = t.id AND s.outcome = 'completed')
		FROM tasks t LEFT JOIN task_runs r ON r.id = (SELECT n.id FROM task_runs n WHERE n.task_id = t.id AND n.ended_at IS NOT NULL
			ORDER BY n.ended_at DESC, n.id DESC LIMIT 1)
		WHERE t.id = ?`, task)
	retry := p.retryTime(s.endedAttempt)
	switch {
	case err != nil || s.Task == "":
		return "", 0, err
	case p.now < retry:
		return lo.Ternary(s.Outcome == "rate_limited", guardRateLimit, guardBackoff), retry, nil
	case from == Review || s.Outcome == "rate_limited":
		return "", 0, nil
	case authErrorPattern.MatchString(s.Failure) && !strings.Contains(s.Failure, rateLimitedText):
		return guardAuth, 0, nil
	case s.Success != 0 && p.now-s.Success <= recentSuccessWindow && s.Success <= p.now+clockSlackSeconds:
		return guardSuccess, s.Success + recentSuccessWindow + 1, nil
	}
	type comment struct {
		Body string
		At   int64
	}
	comments, err := queryAll[comment](p.ctx, p.Store.db, `SELECT body, CAST(created_at AS INTEGER) FROM task_comments
		WHERE task_id = ? AND created_at > ? AND created_at <= ? AND instr(body, 'https://github.com/') > 0`, task, p.now-activePRWindow, p.now+clockSlackSeconds)
	for _, c := range comments {
		if pullRequestPattern.MatchString(c.Body) {
			reason, until = guardActivePR, max(until, c.At+activePRWindow)
		}
	}
	return reason, until, err
}

// recordGuarded records on the board that a task is held back. It adds no event if the task's latest event already has this
// reason. Otherwise every pass would add one to the task's history.
func (p *boardPass) recordGuarded(task, reason string, until int64) error {
	if until != 0 && (p.heldUntil == 0 || until < p.heldUntil) {
		p.heldUntil = until
	}
	p.res.RespawnGuarded = append(p.res.RespawnGuarded, GuardedTask{task, reason})
	if p.dryRun || reason == guardBackoff {
		return nil
	}
	payload := jsonObject{{"reason", reason}}
	recorded, err := queryFirst[bool](p.ctx, p.Store.db, `SELECT kind = ? AND payload IS ? FROM task_events WHERE task_id = ? ORDER BY id DESC LIMIT 1`,
		"respawn_guarded", encodeLikePython(payload), task)
	if err != nil || recorded {
		return err
	}
	return p.write(func(t *writeTx) { t.addEvent(task, 0, "respawn_guarded", payload) })
}

// NextPassTime returns the time at which the caller should make the next pass, even if the board does not change and no worker
// ends. This is the earliest time at which a claim, a grace period, a maximum runtime or a cooldown ends. The zero time means
// never. Call NextPassTime after [Dispatcher.Tick], which finds the tasks that are held back.
func (d *Dispatcher) NextPassTime(ctx context.Context, now time.Time) (time.Time, error) {
	p, err := d.observe(ctx, now)
	if err != nil {
		return time.Time{}, err
	}
	var next int64
	interval := int64(d.Config.interval() / time.Second)
	at := func(holds bool, t int64) {
		// Earlier passes already missed this deadline, so don't try again at once. Another program wrote an
		// old time into the row.
		if t < p.now-interval {
			t = p.now + interval
		}
		t = max(t, p.now+1)
		if holds && (next == 0 || t < next) {
			next = t
		}
	}
	// If a backoff is set, make a pass after each interval as long as tasks are ready, in review or running.
	some, err := queryFirst[bool](ctx, d.Store.db, "SELECT ? AND EXISTS (SELECT 1 FROM tasks WHERE status IN ('ready', 'review', 'running'))", d.Backoff > 0)
	if err != nil {
		return time.Time{}, err
	}
	at(some || len(p.unansweredStarts) > 0, p.now+interval)
	limit := int64(d.Config.StaleTimeout / time.Second)
	for _, w := range p.runningTasks {
		here := w.WorkerPID != 0 && w.isOnThisHost
		at(w.ClaimExpires != 0, w.ClaimExpires+1)
		at(w.failureCountsFrom() != 0, w.failureCountsFrom())
		// Check this worker after each interval, because the runner does not report its end.
		at(here && w.liveness == Unknown && !w.containerGone, p.now+interval)
		if w.MaxRuntimeSeconds != nil {
			at(here, w.since+*w.MaxRuntimeSeconds)
		}
		silent := w.since + limit + 1
		if w.LastHeartbeatAt != 0 {
			silent = max(silent, w.LastHeartbeatAt+heartbeatStaleAfter)
		}
		at(limit > 0, silent)
	}
	for _, w := range p.livingDeparted {
		at(true, p.departedDeadline(w))
	}
	at(d.heldUntil > p.now, d.heldUntil)
	if next == 0 {
		return time.Time{}, nil
	}
	return time.Unix(next, 0), nil
}
