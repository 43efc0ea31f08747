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
	kind    string // the event
	outcome string
	text    string
	extra   object // of the payload
	counted bool
	alone   bool // says nothing of others that ended alike
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
	var crashes []*crash
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
		if c.kind == "crashed" && c.counted && !c.alone {
			alike[fingerprint(c.text)]++
		}
	}
	for _, c := range crashes {
		trip := 0
		if !c.alone && alike[fingerprint(c.text)] >= systemicCrashes {
			trip = 1
		}
		if err := p.writeCrash(c, trip); err != nil {
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
func (p *pass) classify(w *watched) *crash {
	pid, x := w.WorkerPID, w.exit
	c := &crash{watched: w, kind: "crashed", outcome: "crashed", counted: true, alone: x.wordless()}
	notTheTask := func(format string, args ...any) {
		c.kind, c.outcome, c.counted, c.text = "reclaimed", "reclaimed", false, fmt.Sprintf(format, args...)
	}
	switch {
	case w.gone:
		notTheTask("pid %d went down with its container", pid)
	case w.sight == NeverStarted:
		notTheTask("the dispatcher ended before it started the worker")
	case !x.Known:
		c.text = fmt.Sprintf("pid %d not alive", pid)
	case x.Signal == 0 && x.Code == exitRateLimited:
		c.kind, c.outcome, c.counted = "rate_limited", "rate_limited", false
		c.text = fmt.Sprintf("pid %d %s; it will be tried again and counts as no failure", pid, rateLimitedText)
		c.extra = object{{"exit_code", exitRateLimited}}
	case x.Terminated:
		notTheTask("pid %d was ended on purpose", pid)
	case x.Signal != 0:
		c.text = fmt.Sprintf("pid %d killed by signal %d", pid, x.Signal)
		if x.OOM {
			c.text += " (out of memory)"
		}
		c.extra = object{{"exit_kind", "signaled"}, {"exit_code", x.Signal}}
	case x.Code == 0:
		c.kind = "protocol_violation"
		c.text = "worker exited cleanly (rc=0) without calling kanban_complete or kanban_block: the task would stay running for ever"
		c.extra = object{{"exit_code", 0}}
	default:
		c.text = fmt.Sprintf("pid %d exited with code %d", pid, x.Code)
		c.extra = object{{"exit_kind", "nonzero_exit"}, {"exit_code", x.Code}}
	}
	return c
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

func (p *pass) writeCrash(c *crash, trip int) error {
	if c.kind == "reclaimed" {
		ok, err := p.reclaim(c.watched, Termination{Attempted: true, Terminated: true}, c.text)
		if ok {
			p.res.Released = append(p.res.Released, c.ID)
			p.ended(c.watched, c.outcome)
		}
		return err
	}
	who := object{{"pid", c.WorkerPID}, {"claimer", c.ClaimLock}}
	how := release{event: c.kind, payload: who.with(c.extra...), outcome: c.outcome, why: c.text}
	if c.counted {
		how.fault = &fault{limit: p.failureLimit(), trip: trip, trigger: c.outcome, extra: who}
	} else { // the text says why it waits
		how.set, how.args = ", last_failure_error = ?", []any{clip(c.text, failureErrorMaxChars)}
	}
	ok, err := p.release(c.watched, how)
	if err != nil || !ok {
		return err
	}
	p.ended(c.watched, c.outcome)
	if c.counted {
		p.res.Crashed = append(p.res.Crashed, c.ID)
	} else {
		p.res.RateLimited = append(p.res.RateLimited, c.ID)
	}
	return nil
}

// ended notes how a worker ended, for whoever reports it.
func (p *pass) ended(w *watched, outcome string) {
	if w.sight == Ended || w.WorkerPID != 0 {
		p.res.Exits = append(p.res.Exits, EndedRun{Task: w.ID, Run: w.CurrentRunID, Profile: w.Assignee, Outcome: outcome, Exit: w.exit})
	}
}

// fault is what counts of an attempt that didn't succeed.
type fault struct {
	limit   int    // how many are allowed
	trip    int    // a lower limit that this kind of failure has; 0: none
	trigger string // the outcome that it had
	extra   object // of the payload
}

func (d *Dispatcher) failureLimit() int {
	return cmp.Or(max(d.Config.FailureLimit, 0), DefaultFailureLimit)
}

// effective is the limit that counts for a task, and where it comes from.
func (f fault) effective(task Task) (limit int64, source string) {
	switch {
	case task.MaxRetries != nil:
		return *task.MaxRetries, "task"
	case f.trip > 0:
		return int64(f.trip), "dispatcher"
	}
	return int64(f.limit), "dispatcher"
}

// blocks says whether one more failure is one too many.
func (f fault) blocks(task Task) bool {
	limit, _ := f.effective(task)
	return task.ConsecutiveFailures+1 >= limit
}

// fail counts a failure of a task that has been released already, and blocks it.
//
// A block by the limit isn't sticky: it goes on when the limit is raised. A block by a lower limit would be undone by the next
// promotion pass, here or in another program: the counter is below the ordinary limit. So it leaves a `blocked` event, which
// makes the block sticky for all programs.
func (t *tx) fail(task Task, why string, f fault, blocks bool) {
	text := clip(why, failureErrorMaxChars)
	failures := task.ConsecutiveFailures + 1
	t.exec("UPDATE tasks SET consecutive_failures = ?, last_failure_error = ? WHERE id = ?", failures, text, task.ID)
	if !blocks {
		return
	}
	t.exec("UPDATE tasks SET status = 'blocked' WHERE id = ?", task.ID)
	run := task.CurrentRunID
	limit, source := f.effective(task)
	t.event(task.ID, run, "gave_up", object{
		{"failures", failures}, {"effective_limit", limit}, {"limit_source", source}, {"error", text}, {"trigger_outcome", f.trigger},
	}.with(f.extra...))
	if f.trip > 0 && failures < int64(f.limit) {
		t.event(task.ID, run, "blocked", object{{"reason", text}})
	}
}

// spawnFailed gives a claimed task back whose worker couldn't be started.
func (p *pass) spawnFailed(task Task, review bool, why error) error {
	text := why.Error()
	ok, err := p.release(&watched{Task: task, review: review}, release{
		event: "spawn_failed", outcome: "spawn_failed", why: text,
		payload: object{{"error", clip(text, failureErrorMaxChars)}, {"failures", task.ConsecutiveFailures + 1}},
		fault:   &fault{limit: p.failureLimit(), trigger: "spawn_failed"},
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
		ok, err := p.release(w, release{
			event: "timed_out", outcome: "timed_out", why: text, set: ", last_heartbeat_at = NULL",
			payload: object{{"pid", w.WorkerPID}, {"elapsed_seconds", elapsed}, {"limit_seconds", limit}, {"sigkill", end.Killed}},
			fault:   &fault{limit: p.failureLimit(), trigger: "timed_out", extra: object{{"pid", w.WorkerPID}}},
		})
		if ok {
			p.ended(w, "timed_out")
			p.res.TimedOut = append(p.res.TimedOut, w.ID)
		}
		return err
	})
}
