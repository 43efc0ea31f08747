package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

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
	Extra        uint64 // part of Bytes that [ContainerMemory].Used leaves out, such as swapped-out memory
	Shared       uint64 // part of Bytes that processes can share, such as files in memory; in a cgroup, also files that none maps
	CPU          uint64 // processor time, in the clock ticks of package procstat
	HasOwnCgroup bool   // the run has a control group that hinit made and that limits its memory
	OOMKills     uint64 // number of processes in this control group that the kernel has killed for lack of memory
}

// Measure returns, for each main process in mains, the total usage of all processes of its run. Anonymous memory counts, in RAM or
// swapped out. Shared memory counts as much as the process of the run that maps most of it has, because the others usually map the
// same pages. Pages of files on a disk don't count, because the kernel can drop them at any time. The result is 0 for a process
// that is gone, or that /proc hides.
//
// If the main process has its own cgroup, Measure uses the memory of the cgroup, and adds the memory of the run's processes
// outside the cgroup.
func (m *Meter) Measure(mains []int) []Memory {
	m.proc.scan()
	all, roots := make(map[int]stat, len(m.proc.stats)), ServiceRoots{Init: os.Getpid(), Mains: make(map[int]string, len(mains)), Mark: m.proc.mark}
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
		run, inside := m.cgroup(main, of[main])
		run.OOMKills, run.HasOwnCgroup = m.cgroups.oomKillsInOwnCgroup(main)
		for _, pid := range of[main] {
			run.CPU += all[pid].CPU + all[pid].Waited
			if !inside[pid] {
				run.Add(ParseMemory(procstat.Status(m.proc.readFile(strconv.Itoa(all[pid].LivingThread()) + "/status"))))
			}
		}
		out[i] = run
	}
	return out
}

// cgroup returns the memory of the cgroup in which main runs, and the processes in this cgroup. pids lists the processes of
// main's run. cgroup returns no memory and nil if the cgroup contains a process of another run.
func (m *Meter) cgroup(main int, pids []int) (out Memory, inside map[int]bool) {
	dir := m.cgroups.cgroupOf(main)
	if dir == "" {
		return Memory{}, nil
	}
	inside, ok := cgroupPIDs(dir)
	for _, p := range m.proc.stats { // a process that started after the scan is assumed to belong to the run
		ok = ok && (!inside[p.PID] || p.Dead() || slices.Contains(pids, p.PID))
	}
	n, shared, _, measured := cgroupMemory(dir, true)
	if !ok || !measured {
		return Memory{}, nil
	}
	used, _, _, _ := cgroupMemory(dir, false)
	return Memory{Bytes: n, Extra: n - min(n, used), Shared: shared}, inside
}

// ParseMemory returns the memory of one process, according to its status file (proc_pid_status(5)). Bytes is the sum of RssAnon,
// VmSwap, RssShmem, and VmPTE, the page tables. The kernel counts RssShmem for each process that maps the memory. If it has no
// RssAnon, VmRSS is taken.
func ParseMemory(status procstat.Status) Memory {
	value := func(name string) uint64 { n, _ := status.Number(name, 10); return n << 10 }
	anon, swapped, shared := value("RssAnon"), value("VmSwap"), value("RssShmem")
	if _, found := status.Number("RssAnon", 10); !found {
		anon = value("VmRSS")
	}
	return Memory{Bytes: anon + swapped + shared + value("VmPTE"), Extra: swapped, Shared: shared}
}

// Add adds the memory of another process of the same run. Of their shared memory, only the larger part counts.
func (m *Memory) Add(p Memory) {
	m.Bytes += p.Bytes - min(m.Shared, p.Shared)
	m.Extra, m.Shared = m.Extra+p.Extra, max(m.Shared, p.Shared)
}

// ContainerMemory describes the memory of this container.
type ContainerMemory struct {
	Used    uint64  // used memory in bytes, without the file pages that the kernel can drop
	Limit   uint64  // memory limit in bytes; 0 for no limit
	Shared  uint64  // part of Used that is shared memory and files in memory (tmpfs(5)), even if no process has them open
	Kernel  uint64  // part of Used that is memory of the kernel, such as data in sockets, without page tables; 0 if the kernel does not report it
	Stalled float64 // percent of the last 10 s in which all processes waited for memory; 0 if the kernel does not report it
}

// noLimit is the lowest number that stands for "no limit" in a cgroup of version 1.
const noLimit = 1 << 60

// ReadContainerMemory reads the container's own control group, of version 2 or 1 (cgroups(7)). It never waits for a disk.
func ReadContainerMemory() ContainerMemory { return containerMemory(cgroupRoot) }

func containerMemory(root string) (c ContainerMemory) {
	for _, v := range []struct{ dir, limit string }{{root, "/memory.max"}, {root + "/memory", "/memory.limit_in_bytes"}} {
		limit, limited := readNumber(v.dir + v.limit)
		used, shared, kernel, ok := cgroupMemory(v.dir, false)
		if limited && limit < noLimit && ok {
			c.Limit, c.Used, c.Shared, c.Kernel = limit, used, shared, kernel
			break
		}
	}
	text, _ := os.ReadFile(root + "/memory.pressure")
	_, full, _ := strings.Cut(string(text), "full avg10=")
	_, _ = fmt.Sscan(full, &c.Stalled) // 0 if the kernel does not report it
	return c
}

// maxOOMScoreAdj is the highest value of oom_score_adj.
const maxOOMScoreAdj = 1000

// ownOOMScore returns the oom_score_adj of this process (proc_pid_oom_score_adj(5)).
func ownOOMScore() int {
	text, _ := os.ReadFile("/proc/self/oom_score_adj")
	own, _ := strconv.Atoi(string(bytes.TrimSpace(text)))
	return own
}

// OOMRoom returns by how much the oom_score_adj of a process can exceed the value of this process.
func OOMRoom() int { return maxOOMScoreAdj - ownOOMScore() }

// raiseOOMScore raises the oom_score_adj of the process pid, which was just started, and of its children to score. When memory is
// short, the kernel then kills those processes before this process. Call raiseOOMScore after the start: if this process raised
// its own value before the fork, the kernel could kill this process. Raising a value needs no privilege.
func (s *scanner) raiseOOMScore(pid, score int) {
	text := []byte(strconv.Itoa(min(score, maxOOMScoreAdj)))
	pids := []int{pid}
	for i := 0; i < len(pids) && i < maxExitedMarks; i++ {
		dir := strconv.Itoa(pids[i])
		if !s.writeFile(dir, "oom_score_adj", text) {
			continue
		}
		if list, ok := s.readAll(dir + "/task/" + dir + "/children"); ok && len(list) > 0 {
			for word := range bytes.FieldsSeq(list) {
				if child, err := strconv.Atoi(string(word)); err == nil {
					pids = append(pids, child)
				}
			}
		}
	}
}

// writeFile writes a file of a process in /proc. If root lacks the privilege to write files of other users, it opens the file
// with the identity of the file's owner.
func (s *scanner) writeFile(dir, name string, data []byte) bool {
	name = dir + "/" + name
	fd, err := unix.Openat(s.dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		var st unix.Stat_t
		if unix.Fstatat(s.dir, name, &st, 0) == nil {
			runAs(st.Uid, st.Gid, func() { fd, err = unix.Openat(s.dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
		}
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, data)
	return err == nil
}

// OOMKills returns a function that returns the number of processes of this container that the kernel has killed for lack of
// memory. OOMKills returns nil if the kernel does not count these processes (cgroups(7)). The function never waits for a
// disk. It keeps its file open, because the supervisor reads the count at every exit.
func OOMKills() func() uint64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.events",             // version 2
		"/sys/fs/cgroup/memory/memory.oom_control", // version 1
	} {
		fd, _ := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0) // -1 after an error, and then no count is read
		if _, ok := oomKills(fd); ok {
			return func() uint64 { n, _ := oomKills(fd); return n }
		}
		_ = unix.Close(fd)
	}
	return nil
}

// oomKillsIn returns the count of OOMKills for one control group of version 2.
func oomKillsIn(group string) (uint64, bool) {
	text, _ := os.ReadFile(group + "/memory.events")
	return valueOf(text, "oom_kill")
}

func oomKills(fd int) (uint64, bool) {
	content := make([]byte, 1024) // large enough: each file has a few short lines
	n, _ := unix.Pread(fd, content, 0)
	return valueOf(content[:max(n, 0)], "oom_kill")
}
