package probe

import (
	"slices"
	"time"

	"hinit/internal/config"
)

// Rule is when a check is asked, and how many answers in a row count. The thresholds mean the same as in Kubernetes.
type Rule struct {
	Name, Kind      string
	Period, Timeout time.Duration
	Delay           time.Duration // from the begin of the run
	Success         int
	Failure         int
	Jitter          float64
	OnFailure       string
}

// Verdict is what a check has come to.
type Verdict string

// The verdicts.
const (
	Pending Verdict = "pending" // too few answers yet
	Passing Verdict = "passing"
	Failing Verdict = "failing"
	Skipped Verdict = "skipped" // it can't be asked here, and counts as passing
)

// Progress is one check of a run.
type Progress struct {
	Rule    Rule
	Verdict Verdict
	Since   time.Time // of the verdict
	Row     int       // answers in a row that were as the last one
	Good    bool      // the last answer
	Answer  string    // its words
	Asked   time.Time // when it came; zero before the first
	Due     time.Time // of the next look
}

// Failures is how many bad answers came since the last good one.
func (p *Progress) Failures() int {
	if p.Good || p.Asked.IsZero() {
		return 0
	}
	return p.Row
}

// Health is what the checks of a run have come to. It reads no clock and does nothing: who asks tells it the time and the answers.
type Health struct {
	Run    uint64
	Checks []Progress
	Given  bool      // the run is given up; nothing is asked until the next one
	Paused time.Time // an operator wants nothing asked before; zero: now. It outlives the run
}

// Begin returns the health of a run that has begun.
func Begin(rules []Rule, run uint64, began time.Time) Health {
	h := Health{Run: run, Checks: make([]Progress, len(rules))}
	for i, r := range rules {
		h.Checks[i] = Progress{Rule: r, Verdict: Pending, Since: began, Due: began.Add(r.Delay)}
	}
	return h
}

// Follow replaces the rules of a run, which goes on. A check that stays the same kind of check keeps its state.
func (h *Health) Follow(rules []Rule, now time.Time) {
	next := Begin(rules, h.Run, now)
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
		case started && c.Rule.Kind == config.CheckStartup: // the run has started without it
			c.Verdict = Passing
		}
	}
	next.Given, next.Paused = h.Given, h.Paused
	*h = next
}

// Started reports whether every start-up check has passed.
func (h *Health) Started() bool {
	return !slices.ContainsFunc(h.Checks, func(c Progress) bool {
		return c.Rule.Kind == config.CheckStartup && c.Verdict != Passing && c.Verdict != Skipped
	})
}

// Held reports whether a check is not asked for now.
func (h *Health) Held(i int) bool {
	c := &h.Checks[i]
	switch {
	case h.Given || c.Verdict == Skipped:
		return true
	case c.Rule.Kind == config.CheckStartup:
		return c.Verdict == Passing
	}
	return !h.Started()
}

// Next returns when the next look is due, and whether there is one. busy says which checks are being asked.
func (h *Health) Next(busy func(i int) bool) (first time.Time, ok bool) {
	for i := range h.Checks {
		if due := h.Checks[i].Due; !h.Held(i) && !busy(i) && (!ok || due.Before(first)) {
			first, ok = due, true
		}
	}
	return first, ok
}

// Asking notes that a look begins. random is a number in [0,1).
func (h *Health) Asking(i int, now time.Time, random float64) {
	c := &h.Checks[i]
	c.Due = now.Add(c.Rule.Period - time.Duration(float64(c.Rule.Period)*c.Rule.Jitter*random))
}

// Skip notes that a check can't be asked in this run.
func (h *Health) Skip(i int, now time.Time, why string) {
	c := &h.Checks[i]
	c.Verdict, c.Since, c.Answer = Skipped, now, why
}

// Take takes an answer. changed reports whether the verdict of the check has changed. act is the action for the run: one of the
// On constants of package config, "" for none. Answers to a check that is held are dropped.
func (h *Health) Take(i int, now time.Time, good bool, answer string) (changed bool, act string) {
	c := &h.Checks[i]
	if h.Held(i) {
		return false, ""
	}
	if c.Asked.IsZero() || c.Good != good {
		c.Row = 0
	}
	c.Row++
	c.Good, c.Answer, c.Asked = good, answer, now
	verdict := c.Verdict
	switch {
	case good && c.Row >= c.Rule.Success:
		verdict = Passing
	case !good && c.Row >= c.Rule.Failure:
		verdict = Failing
	}
	if verdict == c.Verdict {
		return false, ""
	}
	c.Verdict, c.Since = verdict, now
	switch {
	case verdict == Passing && c.Rule.Kind == config.CheckStartup:
		for j := range h.Checks { // those that waited for it
			if o := &h.Checks[j]; !h.Held(j) && o.Rule.Kind != config.CheckStartup && o.Asked.IsZero() && o.Due.Before(now) {
				o.Due = now
			}
		}
	case verdict == Failing:
		act = c.Rule.OnFailure
		h.Given = act != "" && act != config.OnReport
	}
	return true, act
}

// Gates reports whether checks have a say in whether the service is ready.
func Gates(rules []Rule) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool { return r.Kind != config.CheckAlive })
}

// Ready reports whether the run counts as ready by its checks. said is why it doesn't, or what is wrong with it though it does.
func (h *Health) Ready() (ready bool, said string) {
	ready = true
	for i := range h.Checks {
		c := &h.Checks[i]
		bad := c.Verdict == Failing
		if c.Rule.Kind != config.CheckAlive && c.Verdict != Passing && c.Verdict != Skipped {
			ready, bad = false, true
		}
		if c.Rule.Kind == config.CheckReady && !h.Started() {
			continue // what it waits for is said
		}
		if bad && said == "" {
			said = "check " + c.Rule.Name + " " + words[c.Verdict]
			if c.Answer != "" && !c.Good {
				said += ": " + c.Answer
			}
		}
	}
	return ready, said
}

var words = map[Verdict]string{Pending: "has not passed yet", Failing: "fails", Passing: "passes", Skipped: "is left out"}
