package kanban

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// crash is a worker that is gone while its task still runs, and what follows from how it went.
type crash struct {
	*watched
	release
	alone bool // says nothing of others that ended alike
}

// lastWord is how long a task waits after its worker has ended in a way that a request to end would explain too. The program that
// asked for the end writes the reason on the board. A program that reclaims a task looks every half second whether the worker is
// gone, and writes then.
const lastWord = 5

// wordless says whether the end of a worker may be somebody's wish: it left as the agent's worker does on SIGTERM, or by that signal.
func (x Exit) wordless() bool {
	asked := x.Code == 0 && (x.Signal == 0 || x.Signal == sigTerm) || x.Signal == 0 && x.Code == 128+sigTerm
	return !x.Shutdown && x.Known && (asked || x.Terminated && x.Code != exitRateLimited)
}

// judged is when the end of a worker counts, if no more is known of it until then.
func (w *watched) judged() int64 {
	if w.sight != Ended || !w.exit.wordless() || w.exit.At.IsZero() {
		return 0
	}
	return w.exit.At.Unix() + lastWord
}

// detectCrashed finds workers that are gone. An end that the runner saw is judged at once, unless another program may have asked
// for it. An end that only the pid shows gets the grace first, because a worker that has just been started may not be visible
// yet.
func (p *pass) detectCrashed() error {
	grace := envSeconds(p.Store.opt.Env, "HERMES_KANBAN_CRASH_GRACE_SECONDS", 0, DefaultCrashGrace)
	var crashes []crash
	var again []*watched
	for _, w := range p.watched {
		known := w.sight != Unknown || w.gone
		young := p.now >= w.since && p.now-w.since < grace // a clock that went back makes no worker young
		if w.settled || !known && (w.WorkerPID == 0 || !w.local || young) || !p.dead(w) {
			continue
		}
		if at := w.judged(); p.now < at && at-p.now <= lastWord+1 {
			continue
		}
		if w.sight == NeverStarted && !w.gone && p.mayStart {
			again = append(again, w)
			continue
		}
		crashes = append(crashes, p.classify(w))
	}
	alike := make(map[string]int)
	for _, c := range crashes {
		if c.event == "crashed" && !c.alone {
			alike[fingerprint(c.why)]++
		}
	}
	for _, c := range crashes {
		if c.counts && !c.alone && alike[fingerprint(c.why)] >= systemicCrashes {
			c.trip = 1
		}
		if _, err := p.release(c.watched, c.release); err != nil {
			return err
		}
	}
	for _, w := range again {
		if err := p.startAgain(w); err != nil {
			return err
		}
	}
	return nil
}

// classify says what the end of a worker means.
func (p *pass) classify(w *watched) crash {
	pid, x := w.WorkerPID, w.exit
	who := object{{"pid", pid}, {"claimer", w.ClaimLock}}
	failed := func(event string, extra object, format string, args ...any) crash {
		return crash{w, release{
			event: event, outcome: "crashed", why: fmt.Sprintf(format, args...), payload: who.with(extra...), told: &p.res.Crashed, counts: true, extra: who,
		}, x.wordless()}
	}
	notTheTask := func(format string, args ...any) crash {
		r := p.reclaimed(w, Termination{Attempted: true, Terminated: true}, fmt.Sprintf(format, args...))
		r.told = &p.res.Released
		return crash{w, r, true}
	}
	switch {
	case w.gone:
		return notTheTask("pid %d went down with its container", pid)
	case w.sight == NeverStarted:
		return notTheTask("the dispatcher ended before it started the worker")
	case !x.Known:
		return failed("crashed", nil, "pid %d not alive", pid)
	case x.Signal == 0 && x.Code == exitRateLimited: // the text says why it waits
		why := fmt.Sprintf("pid %d %s; it will be tried again and counts as no failure", pid, rateLimitedText)
		return crash{w, release{
			event: "rate_limited", outcome: "rate_limited", why: why, payload: who.with(pair{"exit_code", exitRateLimited}), told: &p.res.RateLimited,
			set: ", last_failure_error = ?", args: []any{clip(why, failureErrorMaxChars)},
		}, true}
	case x.Terminated:
		return notTheTask("pid %d was ended on purpose", pid)
	case x.Signal != 0:
		memory := map[bool]string{true: " (out of memory)"}[x.OOM]
		return failed("crashed", object{{"exit_kind", "signaled"}, {"exit_code", x.Signal}}, "pid %d killed by signal %d%s", pid, x.Signal, memory)
	case x.Code == 0:
		return failed("protocol_violation", object{{"exit_code", 0}},
			"worker exited cleanly (rc=0) without calling kanban_complete or kanban_block: the task would stay running for ever")
	}
	return failed("crashed", object{{"exit_kind", "nonzero_exit"}, {"exit_code", x.Code}}, "pid %d exited with code %d", pid, x.Code)
}

var (
	pids    = regexp.MustCompile(`pid \d+`)
	numbers = regexp.MustCompile(`\d{10,}`)
)

// fingerprint makes errors that differ in pids and times only the same.
func fingerprint(text string) string {
	text = pids.ReplaceAllString(clip(text, 80), "pid N")
	return strings.ToLower(numbers.ReplaceAllString(text, "N"))
}

// ended notes how a worker ended, for whoever reports it.
func (p *pass) ended(w *watched, outcome string) {
	if w.sight == Ended || w.WorkerPID != 0 {
		p.res.Exits = append(p.res.Exits, EndedRun{Task: w.ID, Run: w.CurrentRunID, Profile: w.Assignee, Outcome: outcome, Exit: w.exit})
	}
}

func (d *Dispatcher) failureLimit() int {
	return cmp.Or(max(d.Config.FailureLimit, 0), DefaultFailureLimit)
}

// limitOf is how many failures a task may have, and where the number comes from.
func (p *pass) limitOf(task Task, r release) (limit int64, source string) {
	if task.MaxRetries != nil {
		return *task.MaxRetries, "task"
	}
	return int64(cmp.Or(r.trip, p.failureLimit())), "dispatcher"
}

// fail counts a failure of a task that has been released already, and blocks it.
//
// A block by the limit isn't sticky: it goes on when the limit is raised. A block by a lower limit would be undone by the next
// promotion pass, here or in another program: the counter is below the ordinary limit. So it leaves a `blocked` event, which
// makes the block sticky for all programs.
func (p *pass) fail(t *tx, task Task, r release, blocks bool) {
	text := clip(r.why, failureErrorMaxChars)
	failures := task.ConsecutiveFailures + 1
	t.exec("UPDATE tasks SET consecutive_failures = ?, last_failure_error = ? WHERE id = ?", failures, text, task.ID)
	if !blocks {
		return
	}
	t.exec("UPDATE tasks SET status = 'blocked' WHERE id = ?", task.ID)
	limit, source := p.limitOf(task, r)
	t.event(task.ID, task.CurrentRunID, "gave_up", object{
		{"failures", failures}, {"effective_limit", limit}, {"limit_source", source}, {"error", text}, {"trigger_outcome", r.outcome},
	}.with(r.extra...))
	if r.trip > 0 && failures < int64(p.failureLimit()) {
		t.event(task.ID, task.CurrentRunID, "blocked", object{{"reason", text}})
	}
}

// spawnFailed gives a claimed task back whose worker couldn't be started.
func (p *pass) spawnFailed(task Task, review bool, why error) error {
	text := why.Error()
	ok, err := p.release(&watched{Task: task, review: review}, release{
		event: "spawn_failed", outcome: "spawn_failed", why: text, counts: true,
		payload: object{{"error", clip(text, failureErrorMaxChars)}, {"failures", task.ConsecutiveFailures + 1}},
	})
	if err != nil {
		return fmt.Errorf("cannot note that %s couldn't be started (%w): %w", task.ID, why, err)
	}
	if ok {
		p.res.Refused = append(p.res.Refused, SpawnFail{task.ID, text})
	}
	return nil
}

// enforceMaxRuntime ends workers that have used up the time of their attempt.
func (p *pass) enforceMaxRuntime() error {
	var over []*watched
	for _, w := range p.watched {
		if !w.settled && w.local && w.sight != Ended && w.WorkerPID != 0 && w.MaxRuntimeSeconds != nil && p.now-w.since >= *w.MaxRuntimeSeconds {
			over = append(over, w)
		}
	}
	return p.end(over, "max_runtime_worker_alive", func(w *watched, end Termination) error {
		elapsed, limit := p.now-w.since, *w.MaxRuntimeSeconds
		text := fmt.Sprintf("elapsed %s is over the maximum runtime of %s", time.Duration(elapsed)*time.Second, time.Duration(limit)*time.Second)
		_, err := p.release(w, release{
			event: "timed_out", outcome: "timed_out", why: text, set: ", last_heartbeat_at = NULL", told: &p.res.TimedOut,
			payload: object{{"pid", w.WorkerPID}, {"elapsed_seconds", elapsed}, {"limit_seconds", limit}, {"sigkill", end.Killed}},
			counts:  true, extra: object{{"pid", w.WorkerPID}},
		})
		return err
	})
}
