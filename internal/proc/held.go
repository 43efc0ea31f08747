package proc

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// heldPeriod is the shortest time between two looks for main processes that a tracer holds.
const heldPeriod = time.Second / 2

// held returns the main processes that have ended and that no wait shows: a tracer keeps a process, or one of its threads, until it has
// taken notice of the end itself, and the kernel tells nobody else (ptrace(2)).
func (t *Table) held() (pids []int) {
	if time.Since(t.heldAt) < heldPeriod {
		return nil
	}
	t.heldAt = time.Now()
	for pid := range t.owned {
		if st, ok := t.proc.stat(pid); ok && st.State == 'Z' && !t.proc.lives(st) {
			if shown, _ := peekAt(unix.P_PID, pid); shown == 0 {
				pids = append(pids, pid)
			}
		}
	}
	return pids
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

// heldStatus is reap for a process that is held. The kernel tells the status, the last field of proc_pid_stat(5), to those who may trace
// the process.
func (t *Table) heldStatus(pid int) (status unix.WaitStatus, _ unix.Rusage) {
	var st unix.Stat_t
	if dir := strconv.Itoa(pid); unix.Fstatat(t.proc.dir, dir, &st, 0) == nil {
		as(st.Uid, st.Gid, func() {
			line := bytes.TrimSpace(t.proc.read(dir + "/stat"))
			n, _ := strconv.ParseUint(string(line[bytes.LastIndexByte(line, ' ')+1:]), 10, 32) // 0 where it is not told
			status = unix.WaitStatus(n)
		})
	}
	return status, unix.Rusage{}
}
