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

// Memory is the memory of a run.
type Memory struct {
	Bytes  uint64
	CPU    uint64 // processor time, in ticks of procstat
	Group  bool   // the kernel holds it to the limits of a control group that hinit has made
	Killed uint64 // processes that the kernel has killed in that group for memory
}

// Measure returns, for each main process, the memory that all processes of its run have together: anonymous memory, in RAM or
// swapped out. Pages of files don't count, because the kernel can drop them at any time. 0: the process is gone, or /proc hides
// it.
//
// If a main process is in a cgroup of its own, the memory of that cgroup counts, and the memory of processes outside of it.
func (m *Meter) Measure(mains []int) []Memory {
	m.proc.look()
	self := os.Getpid()
	all, roots := make(map[int]stat, len(m.proc.stats)), Roots{Init: self, Mains: make(map[int]string, len(mains)), Mark: m.proc.mark}
	for _, pid := range mains {
		roots.Mains[pid] = ""
	}
	for _, p := range m.proc.stats {
		if !p.Dead() {
			all[p.PID] = p
		}
	}
	of := make(map[int][]int, len(mains)) // the processes of each
	for pid, main := range roots.Owners(all) {
		of[main] = append(of[main], pid)
	}
	out := make([]Memory, len(mains))
	for i, main := range mains {
		pids := of[main]
		n, inside := m.cgroup(main, pids)
		out[i].Killed, out[i].Group = m.cgroups.made(main)
		for _, pid := range pids {
			out[i].CPU += all[pid].CPU + all[pid].Waited
			if !inside[pid] {
				n += parseMemory(m.proc.read(strconv.Itoa(pid) + "/status"))
			}
		}
		out[i].Bytes = n
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
	if n, ok = cgroupMemory(dir, true); !ok {
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
