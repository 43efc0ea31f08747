package proc

import (
	"bytes"
	"os"
	"slices"
	"strconv"
)

// Meter measures the memory of process trees. It reads /proc by itself, so it may be used beside a Table, by one goroutine at a time.
type Meter struct {
	proc    *scanner
	cgroups memoryCgroups
}

// NewMeter returns a Meter.
func NewMeter() *Meter {
	s := newScanner()
	return &Meter{s, memoryCgroups{cgroupRoot, func(name string) []byte { return slices.Clone(s.read(name)) }}}
}

// Measure returns, for each of some main processes, the bytes that all processes of its run have together: memory that is no
// file's, in RAM or swapped out, for the kernel can drop the pages of files at any time. A process belongs to the nearest main process
// above it, to the one that leads its session, or to the one whose mark it carries, if it is root's or of the same user. 0: it is gone, or
// /proc hides it.
//
// Where a main process is in a cgroup of its own, what counts is what that cgroup uses, and the memory of those processes that are not in it.
func (m *Meter) Measure(mains []int) []uint64 {
	m.proc.look()
	self := os.Getpid()
	owner, parent := make(map[int]uint64), make(map[int]int, len(m.proc.stats))
	marks := make(map[uint64]uint64)
	mark := func(pid int) uint64 {
		limit, _ := ParseMark(m.proc.read(strconv.Itoa(pid) + "/limits"))
		return limit
	}
	for i, pid := range mains {
		owner[pid] = uint64(i) + 1
		if limit := mark(pid); limit != 0 {
			marks[limit] = uint64(i) + 1
		}
	}
	for _, p := range m.proc.stats {
		parent[p.PID] = p.Parent
		if leader := owner[p.Session]; leader != 0 && p.Session != self && owner[p.PID] == 0 {
			owner[p.PID] = leader
		}
	}
	for _, p := range m.proc.stats { // an orphan that left the session
		if p.Parent == self && owner[p.PID] == 0 && !p.Dead() {
			if id := marks[mark(p.PID)]; id != 0 {
				if user, ok := m.proc.user(mains[id-1]); ok && m.proc.believed(p.PID, user) {
					owner[p.PID] = id
				}
			}
		}
	}
	of := make([][]int, len(mains)) // the processes of each
	for _, p := range m.proc.stats {
		if p.Dead() || p.PID == self {
			continue
		}
		if id := ancestry(p.PID, self, owner, parent); id != 0 {
			of[id-1] = append(of[id-1], p.PID)
		}
	}
	out := make([]uint64, len(mains))
	for i, pids := range of {
		n, inside := m.cgroup(mains[i], pids)
		for _, pid := range pids {
			if !inside[pid] {
				n += parseMemory(m.proc.read(strconv.Itoa(pid) + "/status"))
			}
		}
		out[i] = n
	}
	return out
}

// cgroup returns what the cgroup of a main process uses and the processes inside, nothing where one of them is known not to be among pids.
func (m *Meter) cgroup(main int, pids []int) (n uint64, inside map[int]bool) {
	dir := m.cgroups.of(main)
	if dir == "" {
		return 0, nil
	}
	inside, ok := cgroupPIDs(dir)
	for _, p := range m.proc.stats { // what has begun since the look is its own
		ok = ok && (!inside[p.PID] || p.Dead() || slices.Contains(pids, p.PID))
	}
	if !ok {
		return 0, nil
	}
	if n, ok = cgroupMemory(dir); !ok {
		return 0, nil
	}
	return n, inside
}

// parseMemory adds RssAnon and VmSwap of a status (proc_pid_status(5)), or takes VmRSS of a kernel that has no RssAnon.
func parseMemory(status []byte) uint64 {
	value := func(name string) (kb uint64, found bool) {
		_, rest, found := bytes.Cut(status, []byte("\n"+name+":"))
		if f := bytes.Fields(rest); found && len(f) > 0 {
			kb, _ = strconv.ParseUint(string(f[0]), 10, 54)
		}
		return kb, found
	}
	anon, found := value("RssAnon")
	if !found {
		anon, _ = value("VmRSS")
	}
	swapped, _ := value("VmSwap")
	return (anon + swapped) << 10
}
