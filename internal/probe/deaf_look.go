package probe

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"hinit/internal/config"
	"hinit/profiles"
)

// deafLook gathers the evidence of one run.
type deafLook struct {
	patient
	after  time.Duration
	pid    int
	lines  *sight
	read   func() (profiles.State, error)
	health *httpLook // nil where it has no port

	mu         sync.Mutex // a look that a disk has held up may still be there
	beats, log habit
	cpu        uint64
}

// variables of a profile that say where its gateway answers (the agent's .env).
const (
	healthSwitch = "API_SERVER_ENABLED"
	healthPort   = "API_SERVER_PORT"
)

func newDeaf(c config.Check, t *target) *deafLook {
	d := &deafLook{
		patient: patient{timeout: c.Timeout}, after: c.Deaf.After, pid: t.pid, lines: t.sights[t.check],
		read: func() (profiles.State, error) { return t.options.State(t.Profile) },
	}
	on, _ := t.lookup(healthSwitch)
	if port, ok := t.lookup(healthPort); ok && config.ShellTruthy(on) {
		c.HTTP.URL, c.HTTP.Status = "http://127.0.0.1:"+port+"/health", "100-599" // any answer is one
		d.health, _ = newHTTP(c, func(s string) string { return s })              // with a port that is none it can't be asked
	}
	return d
}

func (d *deafLook) look(deadline time.Time) (good bool, answer string) {
	var e Evidence
	if d.health != nil {
		e.Asked = true
		e.Answers, _ = d.health.look(deadline)
	}
	return d.do(time.Now().Add(d.timeout), func() (bool, string) {
		st, err := d.read()
		d.mu.Lock()
		defer d.mu.Unlock()
		now := time.Now()
		if err == nil && st.Exists {
			d.beats.saw(st.Written)
		}
		if last := d.lines.last.Load(); last > 0 {
			d.log.saw(time.Unix(0, last))
		}
		e.Heartbeat, e.Log = d.beats.silence(now), d.log.silence(now)
		state, cpu := processorTime(d.pid)
		e.Stopped, e.Idle, d.cpu = state == 'T', cpu == d.cpu, cpu
		deaf, why := Deaf(e, d.after)
		return !deaf, why
	})
}

// processorTime returns the state of a process and the clock ticks that it and the children that it waited for have used (proc_pid_stat(5)).
func processorTime(pid int) (state byte, ticks uint64) {
	var stat []byte
	_ = short(func() (err error) {
		stat, err = os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err
	})
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const first = 3 // number of the field after the name
	if len(fields) <= 17-first {
		return 0, 0
	}
	for _, field := range fields[14-first : 17-first+1] {
		n, _ := strconv.ParseUint(string(field), 10, 64)
		ticks += n
	}
	return fields[0][0], ticks
}
