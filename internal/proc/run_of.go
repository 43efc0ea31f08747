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

// maxAncestors limits the number of ancestors that RunOf checks.
const maxAncestors = 256

// RunOf returns the run of a living process, or 0 if there is none. It reads only this process and its ancestors, so it is cheap.
// For a main process it makes no system call. An orphan whose environment is still being read has no run yet.
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
		if id := t.members.known[who]; t.runs[id] != nil {
			return id
		}
		if p.Parent == self || p.Parent == 0 { // an orphan, or a process from outside the container
			t.environWaited = 0
			id, known := t.originOf(who)
			if known {
				if len(t.members.origins) >= maxOrigins {
					clear(t.members.origins)
				}
				t.members.origins[who] = id
			}
			if t.runs[id] == nil {
				return 0
			}
			t.members.known[who] = id
			return id
		}
		pid = p.Parent
	}
	return 0
}

// InSession reports whether pid is the process main, or belongs to the session that main leads. A PID of 0 means unknown; the
// result is then false.
func InSession(pid, main int) bool {
	session, err := unix.Getsid(pid)
	return pid > 0 && main > 0 && (pid == main || err == nil && session == main)
}

// InRun reports whether process pid is alive, was started at the time ticks (see [StartTicks]), and is in the session of the main
// process main. PIDs repeat after a restart of the container, so a PID read from a file proves nothing by itself.
func InRun(pid int, ticks uint64, main int) bool {
	started, alive := StartTicks(pid)
	return alive && started == ticks && InSession(pid, main)
}

// StartTicks returns the start time of a process, in clock ticks since the boot of the machine (proc_pid_stat(5)). PID and
// start time together identify a process. The result is false if the process does not exist, or is a zombie.
func StartTicks(pid int) (uint64, bool) {
	if pid <= 0 {
		return 0, false
	}
	st, err := procstat.Read(pid)
	return st.Start, err == nil && !st.Dead()
}

// NameAndOrigin returns the name (comm) of a process, or "" for a process that is gone. inside reports whether the process may be
// this process or a descendant of it. Normally every process of a container is, because the kernel makes orphans children of
// PID 1. The exceptions are processes that were started from outside, for example by docker exec.
func NameAndOrigin(pid int) (name string, inside bool) {
	comm, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/comm") // "" for a process that is gone or in another PID namespace
	name = strings.TrimSuffix(string(comm), "\n")
	for range 64 { // after 64 ancestors the answer is unknown
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

// ServiceRoots describes the main processes of all services that a single hinit supervises.
type ServiceRoots struct {
	Init  int                        // PID of hinit itself; 0 if unknown
	Mains map[int]string             // names of services by the PID of the main process
	Mark  func(pid int) (Mark, bool) // reads the mark of a process; nil if marks can't be read
}

// Owners returns, for each process in all, the main process of its service, or 0 if it has none. It uses the rules by which
// hinit stops a service: the ancestors of the process, its session or process group, and its mark. An orphan keeps its
// session and process group. The mark counts only for children of this hinit, because another hinit uses the same marks.
func (r ServiceRoots) Owners(all map[int]stat) map[int]int {
	of, parent := make(map[int]int, len(all)), make(map[int]int, len(all))
	var marks map[Mark]int // read only if an orphan exists
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
		nearest := uint64(outerStep) // a hinit inside a service lowers the mark by less than this
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

// mainsByMark returns the main processes by their marks. A limit far below the first mark is not a mark: it really limits
// real-time scheduling.
func (r ServiceRoots) mainsByMark() map[Mark]int {
	marks := make(map[Mark]int, len(r.Mains))
	for main := range r.Mains {
		if mark, ok := r.Mark(main); ok && mark.Limit > firstMark>>1 {
			marks[mark] = main
		}
	}
	return marks
}

// A mark is a value of the limit RLIMIT_RTTIME, in microseconds of real-time scheduling (getrlimit(2)). Every process of a run
// inherits the limit, even across setsid, a double fork and a cleared environment. Each run gets a different value. The values
// are so large (some hundred thousand years) that they limit nothing. No privilege is needed to lower a limit, or to read the
// limits of another process (proc_pid_limits(5)). So this process lowers its own limit by a step before each fork, and later
// finds the descendants by their limit.
//
// An init inside a run lowers the limit further, in smaller steps. So the mark of a run is a range: a limit in (mark-step, mark]
// belongs to the run.
type marker struct {
	base uint64 // limit of this process at its start
	next uint64 // limit of this process now; 0 if marks don't work here
	step uint64
}

const (
	firstMark  = 1 << 62
	outerStep  = 1 << 40 // distance between the marks of two runs; enough for four million runs
	nestedStep = 1 << 20 // enough for a million runs of an init inside a run
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
	return marker{} // a limit as low as this was set to limit real-time scheduling
}

// lowerLimit lowers this process's own limit by a step, so that the next child inherits the new value as its mark. It returns the
// mark, or 0 if marks don't work here.
func (m *marker) lowerLimit() uint64 {
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

// runByMark returns the run to which a process belongs according to its mark (a resource limit), or 0 without a valid mark.
func (t *Table) runByMark(pid int) uint64 {
	if limit, ok := t.readLimit(pid); ok {
		return t.runOfUser(pid, t.runOfMark(limit))
	}
	return 0
}

// runOfMark returns the run whose range of marks contains limit. It returns 0 if limit is in no range.
func (t *Table) runOfMark(limit uint64) uint64 {
	if limit > t.marks.base || t.marks.step == 0 {
		return 0
	}
	steps := (t.marks.base - limit) / t.marks.step
	return t.byMark[t.marks.base-steps*t.marks.step]
}

// runOfUser checks id, the run that the mark or the tag of a process names. It returns id if the user of the process makes the
// mark or tag trustworthy ([Mark.ProvesMembership]), and otherwise 0.
func (t *Table) runOfUser(pid int, id uint64) uint64 {
	// A run that an older hinit handed over may have no user.
	if r := t.runs[id]; r != nil && r.user != nil {
		if m, ok := t.procfs.mark(pid); !ok || !m.ProvesMembership(*r.user) {
			return 0
		}
	}
	return id
}

// Mark holds the mark of a process (see marker) and its real user. The real user stays the same when the process executes a
// setuid program.
type Mark struct {
	Limit uint64 // the mark: the limit RLIMIT_RTTIME of the process; 0 if unknown
	User  uint32
}

// ProvesMembership reports whether the mark and the tag of this process prove that it belongs to a run of user. They are
// proof for processes of root and of that user. A process of another user could have lowered its limit, or set the
// variable, to imitate the run.
func (m Mark) ProvesMembership(user uint32) bool { return m.User == 0 || m.User == user }

// readLimit reads the resource limit that serves as the mark of a process. It also works for a dead process that is not
// reaped yet.
func (t *Table) readLimit(pid int) (uint64, bool) {
	var limit unix.Rlimit
	if unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil { // one system call, for the same user or with a capability; reading /proc takes three
		return limit.Max, true
	}
	m, _ := t.procfs.mark(pid)
	return m.Limit, m.Limit != 0
}

// hidesMark reports whether the limit of a process is lower than every mark that was given so far. Such a process belongs
// to some run, but has lowered its limit, so the limit does not identify the run.
func (t *Table) hidesMark(pid int) bool {
	limit, ok := t.readLimit(pid)
	return ok && t.marks.next != 0 && limit <= t.marks.next-t.marks.step
}

// runOfDead returns the run of a dead orphan by its mark (a resource limit). It returns 0 for an orphan without a mark, and
// unknownRun if the mark can't be read or belongs to no run. A process that came into the container from outside has no
// mark.
func (t *Table) runOfDead(pid int) uint64 {
	limit, ok := t.readLimit(pid)
	switch {
	case !ok, t.marks.step == 0:
		return unknownRun
	case limit >= t.marks.base:
		return 0
	}
	if id := t.runOfMark(limit); id != 0 {
		return t.runOfUser(pid, id)
	}
	return unknownRun
}

// mark reads the mark and the real user of a process from /proc.
func (s *scanner) mark(pid int) (Mark, bool) {
	limits := slices.Clone(s.readFile(strconv.Itoa(pid) + "/limits"))
	return ParseMark(limits, s.readFile(strconv.Itoa(pid)+"/status"))
}

// ParseMark parses the mark and the user from the texts of /proc/PID/limits and status. The mark is the hard limit in the line
// "Max realtime timeout SOFT HARD us". The user is the first number of the line "Uid:". ok reports whether the user is known.
func ParseMark(limits, status []byte) (m Mark, ok bool) {
	_, rest, _ := bytes.Cut(limits, []byte("\nMax realtime timeout"))
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	if f := bytes.Fields(line); len(f) > 1 {
		m.Limit, _ = strconv.ParseUint(string(f[1]), 10, 64) // for "unlimited" this is 0, which means no mark
	}
	uid, ok := procstat.Status(status).Number("Uid", 10)
	m.User = uint32(uid)
	return m, ok
}

// Confinement describes the restrictions that the kernel enforces on a process (proc_pid_status(5)). A child is always at least
// as confined as its parent.
type Confinement struct {
	UID        uint32
	NoNewPrivs bool
	Filters    int // number of seccomp filters
}

// Confined returns the confinement of a process. It reads only /proc. PID 1 calls Confined under the limits of package
// internal/blocking.
func Confined(pid int) (c Confinement, err error) {
	status := procstat.StatusOf(strconv.Itoa(pid))
	uid, known := status.Number("Uid", 10)
	if !known {
		return c, fmt.Errorf("cannot look at process %d: %w", pid, fs.ErrNotExist)
	}
	nnp, _ := status.Number("NoNewPrivs", 10)
	filters, _ := status.Number("Seccomp_filters", 10) // older kernels have no such line
	return Confinement{uint32(uid), nnp == 1, int(filters)}, nil
}

// PeerGone reports whether the process that connected to a Unix socket has ended (unix(7), SO_PEERPIDFD). Its PID may then
// belong to another process. Call PeerGone after you have looked up something by the peer's PID: the result false proves that
// the PID still belonged to the peer. PeerGone does not block. On kernels before 6.5 the result is always false.
func PeerGone(conn net.Conn) bool {
	gone := true
	err := onSocket(conn, func(fd int) error {
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

// Peer returns the credentials of the process on the other side of a Unix socket, as the kernel reports them (unix(7),
// SO_PEERCRED).
func Peer(conn net.Conn) (cred *unix.Ucred, err error) {
	err = onSocket(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	return cred, err
}

// onSocket calls do with the descriptor of a socket. The descriptor stays open until do returns.
func onSocket(conn net.Conn, do func(fd int) error) (err error) {
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
