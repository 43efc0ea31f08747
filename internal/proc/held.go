package proc

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// heldPeriod is the shortest time between two searches for main processes that a tracer holds.
const heldPeriod = time.Second / 2

// nextHeld returns a main process that has ended and that wait(2) does not report, 0 for none. A tracer may hold a process or one
// of its threads. The kernel reports the end to the tracer only, until the tracer has waited for it (ptrace(2)).
func (t *Table) nextHeld() (pid int) {
	if time.Since(t.heldAt) >= heldPeriod {
		t.heldAt = time.Now()
		for pid := range t.owned {
			if st, ok := t.procfs.stat(pid); ok && st.State == 'Z' && !t.procfs.lives(st) {
				t.held = append(t.held, pid)
			}
		}
	}
	for pid == 0 && len(t.held) > 0 {
		pid, t.held = t.held[0], t.held[1:]
		if shown, _ := peekAt(unix.P_PID, pid); shown != 0 || t.owned[pid] == 0 { // released by the tracer or reaped meanwhile
			pid = 0
		}
	}
	return pid
}

// lives reports whether a process whose first thread has ended still has a living thread.
func (s *scanner) lives(p stat) bool {
	if p.Dead() {
		return false
	}
	dir := strconv.Itoa(p.PID) + "/task/"
	for _, thread := range s.threads(dir) {
		if t, ok := procstat.Parse(s.read(dir + thread + "/stat")); ok && strings.IndexByte("ZXx", t.State) < 0 {
			return true
		}
	}
	return false
}
