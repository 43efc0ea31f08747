package probe

import (
	"slices"
	"time"

	"hinit/internal/config"
)

// Verdict is the combined meaning of the results of a check.
type Verdict string

// The verdicts, as the status shows them.
const (
	Pending Verdict = "pending" // too few results to say
	Passing Verdict = "passing"
	Failing Verdict = "failing"
	Skipped Verdict = "skipped" // the check can't run for this service, and does not count
)

// Progress is the state of one check during a run of its service.
type Progress struct {
	Rule         config.Check // period and thresholds, with the same meaning as in Kubernetes
	Verdict      Verdict
	Since        time.Time // when the verdict last changed
	InARow       int       `reexec:"Row"` // number of equal results in a row, including the last
	LastGood     bool      `reexec:"Good"`
	Answer       string    // text of the last result
	LastResultAt time.Time `reexec:"Asked"` // when the last result came; zero if none came yet
	Due          time.Time // when the check must run next
}

// Failures returns the number of bad results since the last good result.
func (p *Progress) Failures() int {
	if p.LastGood || p.LastResultAt.IsZero() {
		return 0
	}
	return p.InARow
}

// Health is the state of all checks of one run. It reads no clock and does no I/O. The caller passes times and results to it.
type Health struct {
	Run       uint64
	Checks    []Progress
	Abandoned bool      `reexec:"Given"` // a failed check has ended this run, so its checks run no more
	Paused    time.Time // until when an operator has paused the checks, also of later runs; zero for no pause
}

// NewHealth returns the Health of a run with the start time began.
func NewHealth(rules []config.Check, run uint64, began time.Time) Health {
	h := Health{Run: run, Checks: make([]Progress, len(rules))}
	for i, r := range rules {
		h.Checks[i] = Progress{Rule: r, Verdict: Pending, Since: began, Due: began.Add(r.InitialDelay)}
	}
	return h
}

// ReplaceRules replaces the rules in the middle of a run. A check with the same name and kind keeps its state.
func (h *Health) ReplaceRules(rules []config.Check, now time.Time) {
	next := NewHealth(rules, h.Run, now)
	started := h.Started()
	for i := range next.Checks {
		c := &next.Checks[i]
		at := slices.IndexFunc(h.Checks, func(o Progress) bool { return o.Rule.Name == c.Rule.Name && o.Rule.Kind == c.Rule.Kind })
		switch {
		case at >= 0:
			rule := c.Rule
			*c = h.Checks[at]
			c.Rule = rule
			if last := now.Add(rule.Period); c.Due.After(last) {
				c.Due = last
			}
		case started && c.Rule.Kind == config.CheckStartup: // the run has passed its start-up without this check
			c.Verdict = Passing
		}
	}
	next.Abandoned, next.Paused = h.Abandoned, h.Paused
	*h = next
}

// Started reports whether all start-up checks have passed. Until then, the other checks do not run.
func (h *Health) Started() bool {
	return !slices.ContainsFunc(h.Checks, func(c Progress) bool {
		return c.Rule.Kind == config.CheckStartup && c.Verdict != Passing && c.Verdict != Skipped
	})
}

// IsOnHold reports whether check i must not run now: it waits for a start-up check, is skipped, or is a start-up check that has
// passed. No check runs while hinit ends the run because of a failed check.
func (h *Health) IsOnHold(i int) bool {
	c := &h.Checks[i]
	switch {
	case h.Abandoned || c.Verdict == Skipped:
		return true
	case c.Rule.Kind == config.CheckStartup:
		return c.Verdict == Passing
	}
	return !h.Started()
}

// NextDue returns when the next check is due. busy reports whether check i is still running. ok is false if no check waits.
func (h *Health) NextDue(busy func(i int) bool) (first time.Time, ok bool) {
	for i := range h.Checks {
		if due := h.Checks[i].Due; !h.IsOnHold(i) && !busy(i) && (!ok || due.Before(first)) {
			first, ok = due, true
		}
	}
	return first, ok
}

// RecordStart records that check i starts now, and computes when it is due again. random, a number in [0,1), chooses the
// jitter.
func (h *Health) RecordStart(i int, now time.Time, random float64) {
	c := &h.Checks[i]
	c.Due = now.Add(c.Rule.Period - time.Duration(float64(c.Rule.Period)*c.Rule.Jitter*random))
}

// Skip records why check i can't run in this run of the service.
func (h *Health) Skip(i int, now time.Time, why string) {
	c := &h.Checks[i]
	c.Verdict, c.Since, c.Answer = Skipped, now, why
}

// RecordResult handles a result of check i. changed reports whether the verdict has changed. act is the action for the caller:
// one of the On constants of package config, or "". RecordResult ignores the result of a check that is on hold (IsOnHold).
func (h *Health) RecordResult(i int, now time.Time, good bool, answer string) (changed bool, act string) {
	c := &h.Checks[i]
	if h.IsOnHold(i) {
		return false, ""
	}
	if c.LastResultAt.IsZero() || c.LastGood != good {
		c.InARow = 0
	}
	c.InARow++
	c.LastGood, c.Answer, c.LastResultAt = good, answer, now
	verdict := c.Verdict
	switch {
	case good && c.InARow >= c.Rule.SuccessThreshold:
		verdict = Passing
	case !good && c.InARow >= c.Rule.FailureThreshold:
		verdict = Failing
	}
	if verdict == c.Verdict {
		return false, ""
	}
	c.Verdict, c.Since = verdict, now
	switch {
	case verdict == Passing && c.Rule.Kind == config.CheckStartup:
		for j := range h.Checks { // checks that waited for the start-up checks are due now
			if o := &h.Checks[j]; !h.IsOnHold(j) && o.Rule.Kind != config.CheckStartup && o.LastResultAt.IsZero() && o.Due.Before(now) {
				o.Due = now
			}
		}
	case verdict == Failing:
		act = c.Rule.OnFailure
		h.Abandoned = act != "" && act != config.OnFailureReport
	}
	return true, act
}

// RepeatAction lets each check that has acted act again if its next result is bad too. Call it after a re-execution, which may
// have lost the action.
func (h *Health) RepeatAction() {
	for i := range h.Checks {
		if c := &h.Checks[i]; h.Abandoned && c.Verdict == Failing && c.Rule.OnFailure != "" && c.Rule.OnFailure != config.OnFailureReport {
			c.Verdict = Pending
		}
	}
	h.Abandoned = false
}

// AffectsReadiness reports whether any check decides about the readiness of its service. Alive checks do not.
func AffectsReadiness(rules []config.Check) bool {
	return slices.ContainsFunc(rules, func(r config.Check) bool { return r.Kind != config.CheckAlive })
}

// Ready reports whether the run is ready according to its checks. statusText says why it is not ready, or warns of a failing
// check of a ready run.
func (h *Health) Ready() (ready bool, statusText string) {
	ready = true
	for i := range h.Checks {
		c := &h.Checks[i]
		bad := c.Verdict == Failing
		if c.Rule.Kind != config.CheckAlive && c.Verdict != Passing && c.Verdict != Skipped {
			ready, bad = false, true
		}
		if c.Rule.Kind == config.CheckReady && !h.Started() {
			continue // statusText must name the start-up check that this check waits for
		}
		if bad && statusText == "" {
			statusText = "check " + c.Rule.Name + " " + verdictWords[c.Verdict]
			if c.Answer != "" && !c.LastGood {
				statusText += ": " + c.Answer
			}
		}
	}
	return ready, statusText
}

var verdictWords = map[Verdict]string{Pending: "has not passed yet", Failing: "fails", Passing: "passes", Skipped: "is left out"}
