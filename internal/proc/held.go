package proc

import (
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// heldPeriod is the shortest time between two looks for main processes that a tracer holds.
const heldPeriod = time.Second / 2

// nextHeld returns a main process that has ended and that no wait shows, 0 for none. A tracer holds a process, or one of its
// threads, until it has waited for the end itself. Until then the kernel reports the end only to the tracer (ptrace(2)).
func (t *Table) nextHeld() (pid int) {
	if time.Since(t.heldAt) >= heldPeriod {
		t.heldAt = time.Now()
		for pid := range t.owned {
			if st, ok := t.proc.stat(pid); ok && st.State == 'Z' && !t.proc.lives(st) {
				t.held = append(t.held, pid)
			}
		}
	}
	for pid == 0 && len(t.held) > 0 {
		pid, t.held = t.held[0], t.held[1:]
		if shown, _ := peekAt(unix.P_PID, pid); shown != 0 || t.owned[pid] == 0 { // it has just ended
			pid = 0
		}
	}
	return pid
}

// lives reports whether a thread of a process lives whose first thread has ended.
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
