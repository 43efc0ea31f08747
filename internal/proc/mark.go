package proc

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// A mark is the limit RLIMIT_RTTIME, in microseconds of real-time scheduling (getrlimit(2)). Every process of a run inherits it,
// also across setsid, a double fork and a cleared environment. Each run gets a value of its own, so large (some hundred thousand
// years) that it limits nothing. Anybody may lower a limit, so it takes no privilege: this process lowers its own a step before
// each fork. Anybody may read the limits of another process (proc_pid_limits(5)), so it takes no privilege to find them either.
//
// An init inside a run lowers the limit further, in smaller steps. So the mark of a run is a range: a limit in (mark-step, mark]
// belongs to the run.
type marker struct {
	base uint64 // where it began
	next uint64 // this process's limit now; 0 when marks don't work here
	step uint64
}

const (
	firstMark  = 1 << 62
	outerStep  = 1 << 40 // four million runs
	nestedStep = 1 << 20 // a million runs of an init inside a run
)

func newMarker() marker {
	var limit unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_RTTIME, &limit); {
	case err != nil:
		return marker{}
	case limit.Max == unix.RLIM_INFINITY:
		return marker{firstMark, firstMark, outerStep}
	case limit.Max >= firstMark-(firstMark>>1):
		return marker{limit.Max, limit.Max, nestedStep}
	}
	return marker{} // somebody limits real-time scheduling in earnest
}

// take sets the limit that the next child inherits and returns it, 0 when that did not work.
func (m *marker) take() uint64 {
	if m.next <= firstMark>>1 {
		return 0
	}
	mark := m.next - m.step
	if unix.Setrlimit(unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: mark}) != nil {
		m.next = 0
		return 0
	}
	m.next = mark
	return mark
}

// marked finds the run whose mark a process carries, 0 when there is none.
func (t *Table) marked(pid int) uint64 {
	if limit, ok := t.limit(pid); ok {
		return t.ofUser(pid, t.runOf(limit))
	}
	return 0
}

// runOf returns the run that a limit marks, 0 for none.
func (t *Table) runOf(limit uint64) uint64 {
	if limit > t.marks.base || t.marks.step == 0 {
		return 0
	}
	steps := (t.marks.base - limit) / t.marks.step
	return t.byMark[t.marks.base-steps*t.marks.step]
}

// ofUser returns the run, or 0 where the mark and the tag of a process prove nothing ([Mark.Counts]).
func (t *Table) ofUser(pid int, id uint64) uint64 {
	// A hinit before this one may not have noted the user.
	if r := t.runs[id]; r != nil && r.user != nil {
		if m, ok := t.proc.mark(pid); !ok || !m.Counts(*r.user) {
			return 0
		}
	}
	return id
}

// Mark is what a process has inherited from a run, and its real user, which a setuid program keeps.
type Mark struct {
	Limit uint64 // 0 when it is not known
	User  uint32
}

// Counts reports whether the mark and the tag of a process count for a run of a user: root's processes and the user's own do.
// Anybody may lower a limit to another process's, and write any variable.
func (m Mark) Counts(user uint32) bool { return m.User == 0 || m.User == user }

// limit reads the mark of a process, which may have ended, as long as it is not reaped.
func (t *Table) limit(pid int) (uint64, bool) {
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil { // of the same user, or with a capability: one call instead of three
		return limit.Max, true
	}
	m, _ := t.proc.mark(pid)
	return m.Limit, m.Limit != 0
}

// strayed reports whether a process has lowered its mark below all that were given away: it comes from a run, and nothing tells
// from which.
func (t *Table) strayed(pid int) bool {
	limit, ok := t.limit(pid)
	return ok && t.marks.next != 0 && limit <= t.marks.next-t.marks.step
}

// endedOf is marked for a process that only its mark can attribute. It is 0 without a mark, and unknown for a mark that fits no
// run. A process that came into the container from outside has none.
func (t *Table) endedOf(pid int) uint64 {
	limit, ok := t.limit(pid)
	switch {
	case !ok, t.marks.step == 0:
		return unknown
	case limit >= t.marks.base:
		return 0
	}
	if id := t.runOf(limit); id != 0 {
		return t.ofUser(pid, id)
	}
	return unknown
}

// mark reads the mark of a process.
func (s *scanner) mark(pid int) (Mark, bool) {
	m, _ := ParseMark(s.read(strconv.Itoa(pid)+"/limits"), nil)
	user, ok := ParseMark(nil, s.read(strconv.Itoa(pid)+"/status"))
	m.User = user.User
	return m, ok
}

// ParseMark finds the mark and the user in the texts of /proc/PID/limits and status. The mark is the hard limit in the line "Max
// realtime timeout  SOFT  HARD  us". The user is the first number of the line "Uid:". It reports whether the user is known.
func ParseMark(limits, status []byte) (m Mark, ok bool) {
	_, rest, _ := bytes.Cut(limits, []byte("\nMax realtime timeout"))
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	if f := bytes.Fields(line); len(f) > 1 {
		m.Limit, _ = strconv.ParseUint(string(f[1]), 10, 64) // "unlimited" is no mark
	}
	_, ids, _ := bytes.Cut(status, []byte("\nUid:\t"))
	first, _, _ := bytes.Cut(ids, []byte{'\t'})
	uid, err := strconv.ParseUint(string(first), 10, 32)
	m.User = uint32(uid)
	return m, err == nil
}
