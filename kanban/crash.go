package kanban

import (
	"fmt"
	"regexp"
	"strings"
)

// crash is a worker that is gone while its task still runs, and what follows from how it went.
type crash struct {
	*watched
	kind    string // the event
	outcome string
	text    string
	extra   object // of the payload
	counted bool
	limit   int // 0: the ordinary failure limit
}

// detectCrashed finds workers that are gone. An end that the runner saw is judged at once; one that only the pid tells of is given
// the grace first, for a worker that has just been started may not be visible yet.
func (p *pass) detectCrashed() error {
	grace := envSeconds(p.Store.opt.Env, "HERMES_KANBAN_CRASH_GRACE_SECONDS", 0, DefaultCrashGrace)
	var crashes []*crash
	for _, w := range p.watched {
		known := w.sight != Unknown || w.gone
		young := p.now >= w.since && p.now-w.since < grace // a clock that went back makes nobody young
		if w.settled || !known && (w.WorkerPID == 0 || !w.local || young) || !p.dead(w) {
			continue
		}
		crashes = append(crashes, p.classify(w))
	}
	alike := make(map[string]int)
	for _, c := range crashes {
		if c.kind == evCrashed && c.counted {
			alike[fingerprint(c.text)]++
		}
	}
	for _, c := range crashes {
		if c.kind == evCrashed && alike[fingerprint(c.text)] >= systemicCrashes {
			c.limit = 1
		}
		if err := p.writeCrash(c); err != nil {
			return err
		}
	}
	return nil
}

// classify says what the end of a worker means.
func (p *pass) classify(w *watched) *crash {
	pid, x := w.WorkerPID, w.exit
	c := &crash{watched: w, kind: evCrashed, outcome: "crashed", counted: true}
	switch {
	case w.sight == NeverStarted:
		c.kind, c.outcome, c.counted = evReclaimed, "reclaimed", false
		c.text = "the dispatcher ended before it started the worker"
	case w.gone:
		c.kind, c.outcome, c.counted = evReclaimed, "reclaimed", false
		c.text = fmt.Sprintf("pid %d went down with its container", pid)
	case !x.Known:
		c.text = fmt.Sprintf("pid %d not alive", pid)
	case x.Signal == 0 && x.Code == exitRateLimited:
		c.kind, c.outcome, c.counted = evRateLimited, "rate_limited", false
		c.text = fmt.Sprintf("pid %d %s; it will be tried again and counts as no failure", pid, rateLimitedText)
		c.extra = object{{"exit_code", exitRateLimited}}
	case x.Terminated:
		c.kind, c.outcome, c.counted = evReclaimed, "reclaimed", false
		c.text = fmt.Sprintf("pid %d was ended on purpose", pid)
	case x.Signal != 0:
		c.text = fmt.Sprintf("pid %d killed by signal %d", pid, x.Signal)
		if x.OOM {
			c.text += " (out of memory)"
		}
		c.extra = object{{"exit_kind", "signaled"}, {"exit_code", x.Signal}}
	case x.Code == 0:
		c.kind, c.limit = evProtocol, 1
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

func (p *pass) writeCrash(c *crash) error {
	if c.kind == evReclaimed {
		ok, err := p.reclaim(c.watched, Termination{Attempted: true, Terminated: true}, c.text)
		if ok {
			p.res.Released = append(p.res.Released, c.ID)
			p.ended(c.watched, c.outcome)
		}
		return err
	}
	c.settled = true
	var ok, blocked bool
	err := p.write(func(t *tx) (err error) {
		more, args := "", []any(nil)
		if !c.counted { // the text says why it waits
			more, args = ", last_failure_error = ?", []any{clip(c.text, failureErrorMaxChars)}
		}
		if ok, err = t.releaseWith(c.watched, more, args); err != nil || !ok {
			return err
		}
		if err := t.closeRun(c.CurrentRunID, as(c.outcome, c.text)); err != nil {
			return err
		}
		payload := object{{"pid", c.WorkerPID}, {"claimer", c.ClaimLock}}.with(c.extra...)
		if err := t.event(c.ID, c.CurrentRunID, c.kind, payload); err != nil || !c.counted {
			return err
		}
		blocked, err = t.fail(c.Task, failure{
			run: c.CurrentRunID, text: c.text, trigger: c.outcome, limit: p.failureLimit(), trip: c.limit,
			extra: object{{"pid", c.WorkerPID}, {"claimer", c.ClaimLock}},
		})
		return err
	})
	if err != nil || !ok {
		return err
	}
	p.ended(c.watched, c.outcome)
	switch {
	case !c.counted:
		p.res.RateLimited = append(p.res.RateLimited, c.ID)
	default:
		p.res.Crashed = append(p.res.Crashed, c.ID)
	}
	if blocked {
		p.res.AutoBlocked = append(p.res.AutoBlocked, c.ID)
	}
	return nil
}

// ended notes how a worker ended, for whoever reports it.
func (p *pass) ended(w *watched, outcome string) {
	if w.sight == Ended || w.WorkerPID != 0 {
		p.res.Exits = append(p.res.Exits, EndedRun{Task: w.ID, Run: w.CurrentRunID, Profile: w.Assignee, Outcome: outcome, Exit: w.exit})
	}
}
