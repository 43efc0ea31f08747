package kanban

import (
	"cmp"
	"fmt"
	"time"
)

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
