package proc

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"hinit/internal/procstat"
)

// Meter measures the memory of process trees. It reads /proc itself, so it needs no Table. Only one goroutine may use it at a
// time.
type Meter struct {
	proc    *scanner
	cgroups memoryCgroups
}

// NewMeter returns a Meter.
func NewMeter() *Meter {
	s := newScanner()
	return &Meter{s, memoryCgroups{cgroupRoot, func(name string) []byte { return slices.Clone(s.readFile(name)) }}}
}

// Memory holds the total usage of all processes of a run.
type Memory struct {
	Bytes        uint64
	CPU          uint64 // processor time, in the clock ticks of package procstat
	HasOwnCgroup bool   // the run has a control group that hinit made and that limits its memory
	OOMKills     uint64 // number of processes in this control group that the kernel has killed for lack of memory
}

// Measure returns, for each main process in mains, the total usage of all processes of its run. Only anonymous memory counts, in
// RAM or swapped out. File pages don't count, because the kernel can drop them at any time. The result is 0 for a process that is
// gone, or that /proc hides.
//
// If the main process has its own cgroup, Measure uses the memory of the cgroup, and adds the memory of the run's processes
// outside the cgroup.
func (m *Meter) Measure(mains []int) []Memory {
	m.proc.scan()
	self := os.Getpid()
	all, roots := make(map[int]stat, len(m.proc.stats)), ServiceRoots{Init: self, Mains: make(map[int]string, len(mains)), Mark: m.proc.mark}
	for _, pid := range mains {
		roots.Mains[pid] = ""
	}
	for _, p := range m.proc.stats {
		if !p.Dead() {
			all[p.PID] = p
		}
	}
	of := make(map[int][]int, len(mains)) // processes of each run, by the PID of the main process
	for pid, main := range roots.Owners(all) {
		of[main] = append(of[main], pid)
	}
	out := make([]Memory, len(mains))
	for i, main := range mains {
		pids := of[main]
		n, inside := m.cgroup(main, pids)
		out[i].OOMKills, out[i].HasOwnCgroup = m.cgroups.oomKillsInOwnCgroup(main)
		for _, pid := range pids {
			out[i].CPU += all[pid].CPU + all[pid].Waited
			if !inside[pid] {
				n += parseMemory(m.proc.readFile(strconv.Itoa(pid) + "/status"))
			}
		}
		out[i].Bytes = n
	}
	return out
}

// cgroup returns the memory of the cgroup in which main runs, and the processes in this cgroup. pids lists the processes of
// main's run. cgroup returns 0 and nil if the cgroup contains a process of another run.
func (m *Meter) cgroup(main int, pids []int) (n uint64, inside map[int]bool) {
	dir := m.cgroups.cgroupOf(main)
	if dir == "" {
		return 0, nil
	}
	inside, ok := cgroupPIDs(dir)
	for _, p := range m.proc.stats { // a process that started after the scan is assumed to belong to the run
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

// parseMemory returns RssAnon plus VmSwap from a status file (proc_pid_status(5)), or VmRSS if the kernel has no RssAnon.
func parseMemory(text []byte) uint64 {
	status := procstat.Status(text)
	anon, found := status.Number("RssAnon", 10)
	if !found {
		anon, _ = status.Number("VmRSS", 10)
	}
	swapped, _ := status.Number("VmSwap", 10)
	return (anon + swapped) << 10
}

// ContainerMemory describes the memory of this container.
type ContainerMemory struct {
	Used    uint64  // used memory in bytes, without the file pages that the kernel can drop
	Limit   uint64  // memory limit in bytes; 0 for no limit
	Stalled float64 // percent of the last 10 s in which all processes waited for memory; 0 if the kernel does not report it
}

// noLimit is the lowest number that stands for "no limit" in a cgroup of version 1.
const noLimit = 1 << 60

// ReadContainerMemory reads the container's own control group, of version 2 or 1 (cgroups(7)). It never waits for a disk.
func ReadContainerMemory() ContainerMemory { return containerMemory(cgroupRoot) }

func containerMemory(root string) (c ContainerMemory) {
	for _, v := range []struct{ dir, limit string }{{root, "/memory.max"}, {root + "/memory", "/memory.limit_in_bytes"}} {
		text, err := os.ReadFile(v.dir + v.limit)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
		used, ok := cgroupMemory(v.dir, false)
		if err != nil || limit >= noLimit || !ok {
			return c
		}
		c.Limit, c.Used = limit, used
		break
	}
	text, _ := os.ReadFile(root + "/memory.pressure")
	_, full, _ := bytes.Cut(text, []byte("full avg10="))
	if words := bytes.Fields(full); len(words) > 0 {
		c.Stalled, _ = strconv.ParseFloat(string(words[0]), 64)
	}
	return c
}
