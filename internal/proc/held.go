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

// nextHeld returns a main process that has ended without wait(2) reporting it, 0 for none. This happens while a tracer holds
// the process or one of its threads. The kernel then first reports the end to the tracer alone, until the tracer has waited for
// the process (ptrace(2)).
func (t *Table) nextHeld() (pid int) {
	if time.Since(t.heldSearched) >= heldPeriod {
		t.heldSearched = time.Now()
		for pid := range t.owned {
			if st, ok := t.procfs.readStat(pid); ok && st.State == 'Z' && !t.procfs.hasLivingThread(st) {
				t.held = append(t.held, pid)
			}
		}
	}
	for pid == 0 && len(t.held) > 0 {
		pid, t.held = t.held[0], t.held[1:]
		if shown, _ := peekAt(unix.P_PID, pid); shown != 0 || t.owned[pid] == 0 { // the tracer has released the process meanwhile, or it was reaped
			pid = 0
		}
	}
	return pid
}

// hasLivingThread reports whether a process whose first thread has ended still has a living thread.
func (s *scanner) hasLivingThread(p stat) bool {
	if p.Dead() {
		return false
	}
	dir := strconv.Itoa(p.PID) + "/task/"
	for _, thread := range s.threadNames(dir) {
		if t, ok := procstat.Parse(s.readFile(dir + thread + "/stat")); ok && strings.IndexByte("ZXx", t.State) < 0 {
			return true
		}
	}
	return false
}
