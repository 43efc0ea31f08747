package kanban

import (
	"errors"
	"fmt"
	"time"
)

// failure is an attempt that didn't succeed.
type failure struct {
	run     int64
	text    string
	trigger string // the outcome that it had
	limit   int    // how many are allowed
	trip    int    // a lower limit that this kind of failure has; 0: none
	extra   object // of the payload
}

func (d *Dispatcher) failureLimit() int {
	if d.Config.FailureLimit > 0 {
		return d.Config.FailureLimit
	}
	return DefaultFailureLimit
}

// fail counts a failure of a task that has been released already, and blocks it when the limit is reached.
//
// A block by the limit isn't sticky: it goes on when the limit is raised. One by a lower limit of its own would be undone by the next
// promotion pass, here or in another program, because the counter is below the ordinary limit. So it leaves a `blocked` event, which
// makes it sticky for all.
func (t *tx) fail(task Task, f failure) (blocked bool, err error) {
	limit, source := f.limit, "dispatcher"
	if f.trip > 0 {
		limit = f.trip
	}
	if task.MaxRetries != nil {
		limit, source = int(*task.MaxRetries), "task"
	}
	text := clip(f.text, failureErrorMaxChars)
	failures := task.ConsecutiveFailures + 1
	set := "consecutive_failures = ?, last_failure_error = ?"
	if blocked = failures >= int64(limit); blocked {
		set += ", status = 'blocked'"
	}
	if _, err := t.exec("UPDATE tasks SET "+set+" WHERE id = ?", failures, text, task.ID); err != nil || !blocked {
		return false, err
	}
	err = t.event(task.ID, f.run, evGaveUp, object{
		{"failures", failures},
		{"effective_limit", limit},
		{"limit_source", source},
		{"error", text},
		{"trigger_outcome", f.trigger},
	}.with(f.extra...))
	if err == nil && f.trip > 0 && failures < int64(f.limit) {
		err = t.event(task.ID, f.run, evBlocked, object{{"reason", text}})
	}
	return true, err
}

// spawnFailed gives a claimed task back whose worker couldn't be started.
func (p *pass) spawnFailed(task Task, review bool, why error) error {
	text := why.Error()
	blocked, ok := false, false
	err := p.write(func(t *tx) (err error) {
		w := &watched{Task: task, review: review}
		if ok, err = t.release(w); err != nil || !ok {
			return err
		}
		blocked, err = t.fail(task, failure{run: task.CurrentRunID, text: text, trigger: "spawn_failed", limit: p.failureLimit()})
		if err != nil {
			return err
		}
		if blocked {
			return t.closeRun(task.CurrentRunID, as("gave_up", text))
		}
		if err := t.closeRun(task.CurrentRunID, as("spawn_failed", text)); err != nil {
			return err
		}
		return t.event(task.ID, task.CurrentRunID, evSpawnFailed,
			object{{"error", clip(text, failureErrorMaxChars)}, {"failures", task.ConsecutiveFailures + 1}})
	})
	if err != nil {
		return fmt.Errorf("cannot note that %s couldn't be started (%w): %w", task.ID, why, err)
	}
	p.res.Refused = append(p.res.Refused, SpawnFail{task.ID, text})
	if blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, task.ID)
	}
	return nil
}

// enforceMaxRuntime ends workers that have used up the time of their attempt.
func (p *pass) enforceMaxRuntime() error {
	var over []*watched
	for _, w := range p.watched {
		if !w.settled && w.local && w.WorkerPID != 0 && w.MaxRuntimeSeconds != nil && p.now-w.since >= *w.MaxRuntimeSeconds {
			over = append(over, w)
		}
	}
	var errs []error
	for i, end := range p.terminate(over) {
		w := over[i]
		if w.survived(end) {
			errs = append(errs, p.deferRelease(w, end, "max_runtime_worker_alive"))
			continue
		}
		errs = append(errs, p.writeTimeout(w, end))
	}
	return errors.Join(errs...)
}

func (p *pass) writeTimeout(w *watched, end Termination) error {
	w.settled = true
	elapsed, limit := p.now-w.since, *w.MaxRuntimeSeconds
	text := fmt.Sprintf("elapsed %s is over the maximum runtime of %s", time.Duration(elapsed)*time.Second, time.Duration(limit)*time.Second)
	var ok, blocked bool
	err := p.write(func(t *tx) (err error) {
		if ok, err = t.releaseWith(w, ", last_heartbeat_at = NULL", nil); err != nil || !ok {
			return err
		}
		if err := t.closeRun(w.CurrentRunID, as("timed_out", text)); err != nil {
			return err
		}
		err = t.event(w.ID, w.CurrentRunID, evTimedOut, object{
			{"pid", w.WorkerPID}, {"elapsed_seconds", elapsed}, {"limit_seconds", limit}, {"sigkill", end.Killed},
		})
		if err != nil {
			return err
		}
		blocked, err = t.fail(w.Task, failure{
			run: w.CurrentRunID, text: text, trigger: "timed_out", limit: p.failureLimit(), extra: object{{"pid", w.WorkerPID}},
		})
		return err
	})
	if err != nil || !ok {
		return err
	}
	p.ended(w, "timed_out")
	p.res.TimedOut = append(p.res.TimedOut, w.ID)
	if blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, w.ID)
	}
	return nil
}
