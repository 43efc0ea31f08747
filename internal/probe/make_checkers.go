package probe

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"time"

	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/profiles"
)

// prepareChecks makes the checkers for a new run. If a check uses a variable of the profile's .env, prepareChecks reads the
// file in a goroutine and returns false, and the checkers follow later. The caller holds p.mu.
func (p *Prober) prepareChecks(t *target) bool {
	if !t.MayUseAgentEnv || !slices.ContainsFunc(t.Checks, func(c config.Check) bool { return len(c.Variables()) > 0 }) {
		p.makeCheckers(t, nil, nil)
		return true
	}
	t.makingCheckers = true
	version := t.version
	guard.Go("reading variables for checks", func() {
		env, err := p.options.Env(t.Profile)
		p.mu.Lock()
		defer p.mu.Unlock()
		t.makingCheckers = false
		if p.targets[t.name] == t && t.version == version {
			p.makeCheckers(t, env, err)
		}
		p.wakeUp()
	})
	return false
}

// makeCheckers makes the checkers of t. env has the variables of the profile's .env; err says why they could not be read. A
// check with a missing variable is skipped. The caller holds p.mu.
func (p *Prober) makeCheckers(t *target, env map[string]string, err error) {
	now := time.Now()
	t.checkers = make([]checker, len(t.Checks))
	for i, c := range t.Checks {
		missing := ""
		with := *t
		with.Expand = func(text string) string {
			return config.FillVariables(t.Expand(text), func(name string) string {
				value, set := t.Env[name]
				if !set || strings.Contains(value, "{") {
					value = env[name]
					if value == "" {
						missing = name
					}
				}
				return value
			})
		}
		with.checkIndex = i
		l, bad := p.newChecker(c, &with)
		switch {
		case missing != "" && err != nil:
			t.health.Skip(i, now, fmt.Sprintf("the variable %s is not known: %v", missing, err))
		case missing != "":
			t.health.Skip(i, now, "the variable "+missing+" is not set")
		case bad != nil:
			t.health.Skip(i, now, bad.Error())
		}
		t.checkers[i] = l
	}
	p.reportReadiness(t)
}

// makeChecker makes the checker of one check. t.Expand fills in the placeholders of its texts.
func makeChecker(c config.Check, t *target) (checker, error) {
	switch c.Type {
	case config.CheckHTTP:
		return newHTTPCheck(c, t.Expand)
	case config.CheckTCP:
		target := t.Expand(c.Dial.Target())
		to, err := parseAddresses(target)
		host, _, _ := net.SplitHostPort(target)
		return &tcpCheck{to, host == "localhost" || host == "::1" || strings.HasPrefix(host, "127."), c.Timeout}, err
	case config.CheckUnix:
		return &unixCheck{pathCheck{diskCall{timeout: c.Timeout}, t.Expand(c.Dial.Path), t.Actor}}, nil
	case config.CheckFile:
		return &fileCheck{pathCheck{diskCall{timeout: c.Timeout}, t.Expand(c.File.Path), t.Actor}, c.File.MaxAge, freshness{}}, nil
	case config.CheckExec:
		return newExecCheck(c, t), nil
	case config.CheckLog:
		return newLogCheck(c, t), nil
	case config.CheckDeaf:
		return deafCheck{t.health.Run, func() (Deafness, bool) { return t.options.Deafness(t.name) }}, nil
	case config.CheckNotify:
		return startupCheck{t.notifyState}, nil
	case config.CheckWatchdog:
		return &watchdogCheck{notifyState: t.notifyState, readMessages: func() { t.options.ReadMessages(t.name) }}, nil
	case config.CheckState:
		return &stateCheck{diskCall: diskCall{timeout: c.Timeout}, settings: c.State, read: func() (profiles.State, error) { return t.options.State(t.Profile) }}, nil
	}
	return nil, fmt.Errorf("%q is no type of a check", c.Type)
}

// startCheck starts check i of a service in a goroutine. A check that never waits goes into the queue for runQuickChecks. The
// caller holds p.mu.
func (p *Prober) startCheck(t *target, i int, now time.Time) {
	l, version, timeout := t.checkers[i], t.version, t.rules[i].Timeout
	t.health.RecordStart(i, now, rand.Float64())
	if c := &t.health.Checks[i]; c.Verdict == Passing {
		c.Due = p.endOfSlot(c.Due, min(c.Rule.Period/10, maxTimerSlot))
	}
	t.busy[i] = true
	p.runningChecks++
	start := func() {
		guard.Go("asking a check", func() {
			good, answer := l.check(time.Now().Add(timeout))
			p.recordResult(t, version, i, good, answer)
		})
	}
	tcp, ok := l.(*tcpCheck)
	if !ok || !tcp.isLoopback {
		start()
		return
	}
	p.quickChecks = append(p.quickChecks, func() {
		if good, answer, over := tcp.connect(time.Time{}); over {
			p.recordResult(t, version, i, good, answer)
		} else {
			start()
		}
	})
}

// runQuickChecks makes the queued checks, which never wait, in this goroutine. The caller holds p.mu, and runQuickChecks
// releases it during the checks.
func (p *Prober) runQuickChecks() {
	attempts := p.quickChecks
	p.quickChecks = nil
	p.mu.Unlock()
	defer p.mu.Lock()
	for _, attempt := range attempts {
		attempt()
	}
}
