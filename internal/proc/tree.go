package proc

import (
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// leftBehind looks for living processes of a run whose main process has ended and is not buried yet, remembers them and
// reports whether there are any.
func (t *Table) leftBehind(r *run) bool {
	if t.proc.fresh && !t.proc.sawEnd(r.main) {
		t.proc.forget() // the look is older than the end of this process
	}
	return len(t.find(r)) > 0
}

// sawEnd reports whether the kept look already shows the process as ended, so that nothing it started can be missing.
func (s *scanner) sawEnd(pid int) bool {
	return slices.ContainsFunc(s.stats, func(p stat) bool { return p.pid == pid && p.dead() })
}

// find returns the living processes of a run but its main one, and remembers them. A process belongs to the run when it
// was known before, when it is in the group or the session that the main process made (as long as that number can't have
// gone to another), when its parent belongs to it, or when it came to this process as an orphan and carries the run's mark
// or, in its environment, the run's tag.
func (t *Table) find(r *run) []stat {
	all := t.proc.look()
	self := os.Getpid()
	belongs := make(map[int]bool, 8)
	held := r.main != 0
	for _, p := range all {
		if start, known := r.members[p.pid]; known && start == p.start {
			belongs[p.pid] = true
			held = held || p.group == r.group || p.session == r.group
		}
	}
	if r.main != 0 {
		belongs[r.main] = true
	}
	for _, p := range all {
		if belongs[p.pid] || p.pid == self || p.dead() {
			continue
		}
		if held && (p.group == r.group || r.session && p.session == r.group) {
			belongs[p.pid] = true
			continue
		}
		if _, main := t.owned[p.pid]; !main && p.ppid == self && (t.marked(p.pid, r) || tagged(p.pid, r.tag, r.cred)) {
			belongs[p.pid] = true
		}
	}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !belongs[p.pid] && belongs[p.ppid] && !p.dead() {
				belongs[p.pid], grown = true, true
			}
		}
	}
	r.members = make(map[int]uint64, len(belongs))
	var living []stat
	for _, p := range all {
		if belongs[p.pid] && p.pid != r.main && !p.dead() {
			r.members[p.pid] = p.start
			living = append(living, p)
		}
	}
	return living
}

// Observe looks at the living processes of a run, so that one which loses its parents later is still known to belong.
func (t *Table) Observe(id uint64) {
	if r := t.runs[id]; r != nil {
		t.proc.forget()
		t.find(r)
	}
}

// SignalTree signals every living process of a run, and stays at it for KILL until no new one turns up, so that a process
// that forks meanwhile does not get away. It returns how many processes it signalled.
func (t *Table) SignalTree(id uint64, signal int) int {
	r := t.runs[id]
	if r == nil {
		return 0
	}
	seen := make(map[int]bool)
	for range 8 {
		t.proc.forget()
		living := t.find(r)
		before := len(seen)
		if r.main != 0 && !seen[r.main] {
			seen[r.main] = true
			_ = unix.Kill(r.main, syscall.Signal(signal))
		}
		for _, p := range living {
			if !seen[p.pid] {
				seen[p.pid] = true
				t.kill(p, signal)
			}
		}
		if len(seen) == before || signal != int(unix.SIGKILL) {
			break
		}
	}
	return len(seen)
}

// kill signals a process that is not this one's to bury, through a descriptor that can't be recycled: between the look
// and the signal its number could have gone to another.
func (t *Table) kill(p stat, signal int) {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		if err == unix.ENOSYS || err == unix.EPERM { // old kernel, or seccomp
			_ = unix.Kill(p.pid, syscall.Signal(signal))
		}
		return
	}
	defer unix.Close(fd)
	if now, ok := t.proc.stat(p.pid); !ok || now.start != p.start {
		return
	}
	if unix.PidfdSendSignal(fd, syscall.Signal(signal), nil, 0) == unix.ENOSYS {
		_ = unix.Kill(p.pid, syscall.Signal(signal))
	}
}

// Gone returns those of the given runs of which no process is alive.
func (t *Table) Gone(ids []uint64) []uint64 {
	var gone []uint64
	t.proc.forget()
	for _, id := range ids {
		if r := t.runs[id]; r == nil || r.main == 0 && len(t.find(r)) == 0 {
			gone = append(gone, id)
		}
	}
	return gone
}

// SignalRest signals every descendant of this process. PID 1 signals everything in its namespace but itself (kill(2)).
func (t *Table) SignalRest(signal int) {
	if os.Getpid() == 1 {
		_ = unix.Kill(-1, syscall.Signal(signal))
		return
	}
	t.proc.forget()
	all := t.proc.look()
	belongs := map[int]bool{os.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !belongs[p.pid] && belongs[p.ppid] {
				belongs[p.pid], grown = true, true
			}
		}
	}
	for _, p := range all {
		if belongs[p.pid] && p.pid != os.Getpid() && !p.dead() {
			t.kill(p, signal)
		}
	}
}
