package proc

import (
	"os"
	"strconv"
	"strings"

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
	if pid <= 0 || main <= 0 {
		return false
	}
	if pid == main {
		return true
	}
	session, err := unix.Getsid(pid)
	return err == nil && session == main
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
