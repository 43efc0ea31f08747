package probe

import (
	"sync"
	"time"

	"hinit/internal/config"
	"hinit/profiles"
)

// deafLook gathers the evidence of one run.
type deafLook struct {
	patient
	after, period time.Duration
	pid           int
	lines         *sight
	read          func() (profiles.State, error)
	health        *httpLook // nil where it has no port

	mu     sync.Mutex // a look that a disk has held up may still be there
	heard  hearing
	deaf   bool // by the last look that came to something
	answer string
}

// variables of a profile that say where its gateway answers (the agent's .env).
const (
	healthSwitch = "API_SERVER_ENABLED"
	healthPort   = "API_SERVER_PORT"
)

func newDeaf(c config.Check, t *target) *deafLook {
	return &deafLook{
		patient: patient{timeout: c.Timeout}, after: c.Deaf.After, period: c.Period, pid: t.pid, lines: t.sights[t.check],
		read:   func() (profiles.State, error) { return t.options.State(t.Profile) },
		health: healthOf(t.lookup, c.Timeout),
	}
}

// healthOf asks the /health of a profile with these variables, nil where it has none. Any answer is one.
func healthOf(lookup func(string) (string, bool), timeout time.Duration) *httpLook {
	on, _ := lookup(healthSwitch)
	port, ok := lookup(healthPort)
	if !ok || !config.ShellTruthy(on) {
		return nil
	}
	c := config.Check{Timeout: timeout, HTTP: config.HTTPCheck{URL: "http://127.0.0.1:" + port + "/health", Status: "100-599"}}
	h, _ := newHTTP(c, func(s string) string { return s }) // with a port that is none it can't be asked
	return h
}

// look says nothing new where the disk can't be asked: that is no sign of the gateway.
func (d *deafLook) look(deadline time.Time) (good bool, answer string) {
	answers := false
	if d.health != nil {
		answers, _ = d.health.look(deadline)
	}
	_, late := d.do(time.Now().Add(d.timeout), func() (bool, string) {
		st, err := d.read()
		d.mu.Lock()
		defer d.mu.Unlock()
		if err != nil {
			return false, err.Error()
		}
		s := signs{line: uint64(d.lines.last.Load()), beat: st.Beat, usage: processorTime(d.pid)}
		e := d.heard.look(time.Now(), d.period, s)
		d.heard.answered = d.heard.answered || answers
		e.Asked, e.Answers = d.heard.answered, answers
		if d.heard.doubts(e, d.after) {
			e.Idle = e.Idle && d.heard.treeRests(treesOf()[d.pid])
		}
		d.deaf, d.answer = Deaf(e, d.after)
		return true, ""
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	if late != "" {
		d.heard.looked = time.Time{} // what came meanwhile is not known
		return !d.deaf, "not looked at: " + late
	}
	return !d.deaf, d.answer
}
