package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// maxAncestors is the maximum number of ancestors that RunOf examines.
const maxAncestors = 256

// RunOf returns the run to which a living process belongs, or 0 if it belongs to none. It reads only this process and its
// ancestors, so it is cheap; for a main process it needs no system call. The result is also 0 while hinit is still reading
// the environment of an orphan.
func (t *Table) RunOf(pid int) uint64 {
	self := os.Getpid()
	for range maxAncestors {
		if id := t.owned[pid]; id != 0 {
			return id
		}
		p, ok := t.procfs.readStat(pid)
		if !ok || pid == self || pid <= 0 {
			return 0
		}
		who := identity{p.PID, p.Start}
		if id := t.members.runsOfProcesses[who]; t.runs[id] != nil {
			return id
		}
		if p.Parent == self || p.Parent == 0 { // an orphan, or a process that came from outside the container
			t.environWaitTime = 0
			id, known := t.runOfOrphanCached(who)
			if known {
				if len(t.members.orphanRuns) >= maxCachedOrphanRuns {
					clear(t.members.orphanRuns)
				}
				t.members.orphanRuns[who] = id
			}
			if t.runs[id] == nil {
				return 0
			}
			t.members.runsOfProcesses[who] = id
			return id
		}
		pid = p.Parent
	}
	return 0
}

// InSession reports whether process pid is the process main, or belongs to the session that main leads. It is false if a PID
// is 0, which means unknown.
func InSession(pid, main int) bool {
	session, err := unix.Getsid(pid)
	return pid > 0 && main > 0 && (pid == main || err == nil && session == main)
}

// InRun reports whether process pid belongs to the session of the main process main, and was started at the time ticks (see
// [StartTicks]). Use it for a PID from a file: after a restart of the container the number may belong to another process.
func InRun(pid int, ticks uint64, main int) bool {
	started, alive := StartTicks(pid)
	return alive && started == ticks && InSession(pid, main)
}

// StartTicks returns the start time of a process, in clock ticks since the machine was booted (proc_pid_stat(5)). PID and
// start time together identify a process for ever. The result is false for a process that has ended.
func StartTicks(pid int) (uint64, bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := procstat.Read(pid)
	return st.Start, err == nil && !st.Dead()
}

// NameAndOrigin returns the name (comm) of a process, "" if it has ended. inside reports whether the process is hinit or a
// descendant of hinit. It is false for a process from outside the container, for example of docker exec. Every other process is
// a descendant, because the kernel makes orphans children of PID 1.
func NameAndOrigin(pid int) (name string, inside bool) {
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm")
	name = strings.TrimSuffix(string(comm), "\n")
	for range 64 { // a process with more than 64 ancestors counts as inside
		if pid <= 1 || pid == os.Getpid() {
			return name, pid == os.Getpid()
		}
		st, err := procstat.Read(pid)
		if err != nil {
			break
		}
		pid = st.Parent
	}
	return name, true
}

// ServiceRoots lists the main processes of all services of one hinit.
type ServiceRoots struct {
	Init  int                        // PID of hinit itself; 0 if unknown
	Mains map[int]string             // names of services by the PID of their main process
	Mark  func(pid int) (Mark, bool) // function that reads the mark of a process; nil if marks can't be read
}

// Owners returns the main process of the service to which each process in all belongs, or 0. It applies the rules by which
// hinit stops a service: ancestors, session or process group, and mark. An orphan keeps its session and group. The mark
// counts only for children of this hinit, because another hinit in the container uses the same marks.
func (r ServiceRoots) Owners(all map[int]stat) map[int]int {
	of, parent := make(map[int]int, len(all)), make(map[int]int, len(all))
	var marks map[Mark]int
	for pid, p := range all {
		parent[pid] = p.Parent
		for _, main := range [...]int{p.Group, p.Session, pid} {
			if _, is := r.Mains[main]; is {
				of[pid] = main
			}
		}
		if p.Parent != r.Init || of[pid] != 0 || r.Mark == nil || r.Init == 0 {
			continue
		}
		if marks == nil {
			marks = r.mainsByMark()
		}
		mark, ok := r.Mark(pid)
		nearest := uint64(markStep) // an init inside a service lowers the mark by less than this
		for m, main := range marks {
			if ok && mark.Limit != 0 && mark.ProvesMembership(m.User) && mark.Limit <= m.Limit && m.Limit-mark.Limit < nearest {
				of[pid], nearest = main, m.Limit-mark.Limit
			}
		}
	}
	for pid := range all {
		runOfAncestor(pid, r.Init, of, parent)
	}
	return of
}

// mainsByMark returns the main processes by their marks. A limit far below the first mark is a real limit of real-time
// scheduling.
func (r ServiceRoots) mainsByMark() map[Mark]int {
	marks := make(map[Mark]int, len(r.Mains))
	for main := range r.Mains {
		if mark, ok := r.Mark(main); ok && mark.Limit > firstMark>>1 {
			marks[mark] = main
		}
	}
	return marks
}

// marker sets the mark of each new process: a different value of the limit RLIMIT_RTTIME (getrlimit(2)) for each run. Every
// descendant inherits it, even across setsid, a double fork and a cleared environment. The values are so large that they limit
// nothing. Lowering a limit and reading the limits of a process (proc_pid_limits(5)) need no privilege. So hinit lowers its own
// limit by one step before each fork, and later finds the descendants of a run by their limit.
//
// An init inside a run also lowers its limit, in smaller steps. So each run has a range of marks: (mark-step, mark].
type marker struct {
	initialLimit uint64 `reexec:"base"` // limit of hinit when it was started
	ownLimit     uint64 `reexec:"next"` // present limit of hinit; 0 if marks don't work here
	step         uint64
}

const (
	firstMark      = 1 << 62
	markStep       = 1 << 40 // distance between the marks of two runs; enough for four million runs
	nestedMarkStep = 1 << 20 // distance between the marks of two runs of an init inside a run; enough for a million runs
)

func newMarker() marker {
	var limit unix.Rlimit
	switch err := unix.Getrlimit(unix.RLIMIT_RTTIME, &limit); {
	case err != nil:
		return marker{}
	case limit.Max == unix.RLIM_INFINITY:
		return marker{firstMark, firstMark, markStep}
	case limit.Max >= firstMark-(firstMark>>1):
		return marker{limit.Max, limit.Max, nestedMarkStep}
	}
	return marker{} // the operator has set a real limit for real-time scheduling, too low for marks
}

// lowerLimit lowers the limit of hinit by one step, and the next child inherits the new value as its mark. It returns the mark,
// or 0 if marks don't work here.
func (m *marker) lowerLimit() uint64 {
	if m.ownLimit <= firstMark>>1 {
		return 0
	}
	mark := m.ownLimit - m.step
	if unix.Setrlimit(unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: mark, Max: mark}) != nil {
		m.ownLimit = 0
		return 0
	}
	m.ownLimit = mark
	return mark
}

// runByMark returns the run of a process by its mark. The result is 0 without a mark, or if the process could have forged it
// (see verifiedRun).
func (t *Table) runByMark(pid int) uint64 {
	if limit, ok := t.readLimit(pid); ok {
		return t.verifiedRun(pid, t.runOfMark(limit))
	}
	return 0
}

// runOfMark returns the run whose range of marks contains limit, or 0.
func (t *Table) runOfMark(limit uint64) uint64 {
	if limit > t.marker.initialLimit || t.marker.step == 0 {
		return 0
	}
	steps := (t.marker.initialLimit - limit) / t.marker.step
	return t.runIDByMark[t.marker.initialLimit-steps*t.marker.step]
}

// verifiedRun confirms that process pid belongs to run id, which its mark or tag names. It returns 0 if the process runs as a
// user who could have forged them, see [Mark.ProvesMembership].
func (t *Table) verifiedRun(pid int, id uint64) uint64 {
	if r := t.runs[id]; r != nil {
		if m, ok := t.procfs.mark(pid); !ok || !m.ProvesMembership(r.user) {
			return 0
		}
	}
	return id
}

// Mark holds the mark of a process (see marker) and its real user. The real user stays the same when the process executes a
// setuid program.
type Mark struct {
	Limit uint64 // the limit RLIMIT_RTTIME, which serves as the mark; 0 if unknown
	User  uint32
}

// ProvesMembership reports whether the mark and the tag of this process prove that it belongs to a run of the given user. They
// prove it for a process of that user or of root. A process of another user could have forged them.
func (m Mark) ProvesMembership(user uint32) bool { return m.User == 0 || m.User == user }

// readLimit reads the limit that serves as the mark of a process. It also works for a dead process until that is reaped.
func (t *Table) readLimit(pid int) (uint64, bool) {
	var limit unix.Rlimit
	// Prlimit needs the same user or a capability. It is a single system call, whereas reading /proc takes three.
	if unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil {
		return limit.Max, true
	}
	m, _ := t.procfs.mark(pid)
	return m.Limit, m.Limit != 0
}

// hidesMark reports whether the limit of a process is lower than every mark given so far. Such a process has lowered its
// limit, so it belongs to some run but the limit does not tell which.
func (t *Table) hidesMark(pid int) bool {
	limit, ok := t.readLimit(pid)
	return ok && t.marker.ownLimit != 0 && limit <= t.marker.ownLimit-t.marker.step
}

// runOfDeadOrphan returns the run of a dead orphan by its mark. It returns 0 for an orphan without a mark, which came from
// outside the container. It returns unknownRun if the mark can't be read or belongs to no run.
func (t *Table) runOfDeadOrphan(pid int) uint64 {
	limit, ok := t.readLimit(pid)
	switch {
	case !ok, t.marker.step == 0:
		return unknownRun
	case limit >= t.marker.initialLimit:
		return 0
	}
	if id := t.runOfMark(limit); id != 0 {
		return t.verifiedRun(pid, id)
	}
	return unknownRun
}

// mark reads the mark and the real user of a process from /proc, for scans without a Table.
func (s *scanner) mark(pid int) (Mark, bool) {
	limits := slices.Clone(s.readFile(strconv.Itoa(pid) + "/limits"))
	return ParseMark(limits, s.readFile(strconv.Itoa(pid)+"/status"))
}

// ParseMark finds the mark and the user in the texts of /proc/PID/limits and /proc/PID/status. The mark is the hard limit in
// the line "Max realtime timeout SOFT HARD us", and the user is the first number after "Uid:". ok is false if there is no
// user.
func ParseMark(limits, status []byte) (m Mark, ok bool) {
	_, rest, _ := bytes.Cut(limits, []byte("\nMax realtime timeout"))
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	if f := bytes.Fields(line); len(f) > 1 {
		m.Limit, _ = strconv.ParseUint(string(f[1]), 10, 64)
	}
	uid, ok := procstat.Status(status).Number("Uid", 10)
	m.User = uint32(uid)
	return m, ok
}

// Confinement describes how the kernel restricts a process (proc_pid_status(5)). A child is always at least as confined as
// its parent, so it can't gain rights by forking.
type Confinement struct {
	UID        uint32
	NoNewPrivs bool
	Filters    int // number of seccomp filters
}

// ReadConfinement returns the confinement of a process. It reads only /proc. In PID 1 call it with package internal/blocking,
// because a process can delay such a read.
func ReadConfinement(pid int) (c Confinement, err error) {
	status := procstat.ReadStatus(strconv.Itoa(pid))
	uid, known := status.Number("Uid", 10)
	if !known {
		return c, fmt.Errorf("cannot look at process %d: %w", pid, fs.ErrNotExist)
	}
	nnp, _ := status.Number("NoNewPrivs", 10)
	filters, _ := status.Number("Seccomp_filters", 10)
	return Confinement{uint32(uid), nnp == 1, int(filters)}, nil
}

// PeerExited reports whether the process that connected to a Unix socket has ended (unix(7), SO_PEERPIDFD). Its PID may then
// belong to another process. Call PeerExited after every look-up by the peer's PID: false proves that the PID still belonged to
// the peer. PeerExited does not block. Before Linux 6.5 it always returns false.
func PeerExited(conn net.Conn) bool {
	gone := true
	err := withSocketFD(conn, func(fd int) error {
		pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			gone = err != unix.ENOPROTOOPT
			return nil
		}
		defer unix.Close(pidfd)
		exited := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(exited, 0)
		gone = err != nil || n > 0
		return nil
	})
	return err != nil || gone
}

// PeerCredentials returns the PID and the user of the process at the other end of a Unix socket, from the kernel (unix(7),
// SO_PEERCRED).
func PeerCredentials(conn net.Conn) (cred *unix.Ucred, err error) {
	err = withSocketFD(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// withSocketFD calls do with the descriptor of a connection, which stays open until do returns.
func withSocketFD(conn net.Conn, do func(fd int) error) (err error) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("not a socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}
