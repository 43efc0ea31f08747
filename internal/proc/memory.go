package proc

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
)

// MemoryMeter measures the memory of the processes of services. It scans /proc itself and needs no Table, so it can run outside
// the loop. Only one goroutine may use it at a time.
type MemoryMeter struct {
	proc    *scanner
	cgroups memoryCgroups
}

// NewMemoryMeter returns a MemoryMeter that reads /proc and the control groups below /sys/fs/cgroup.
func NewMemoryMeter() *MemoryMeter {
	s := newScanner()
	return &MemoryMeter{s, memoryCgroups{cgroupRoot, func(name string) []byte { return slices.Clone(s.readFile(name)) }}}
}

// Memory is what all processes of a run use together.
type Memory struct {
	Bytes        uint64
	Swapped      uint64 // part of Bytes outside [ContainerMemory].Used: mainly swapped-out memory
	Shared       uint64 // part of Bytes that other processes may share, such as files in memory (tmpfs)
	CPU          uint64 // processor time, in the clock ticks of package procstat
	HasOwnCgroup bool   // the run has a control group that hinit made and that limits its memory
	OOMKills     uint64 // number of processes of this control group that the kernel has killed for lack of memory
}

// Measure returns the usage of one run for each main process in mains. It counts anonymous memory, in RAM or swapped out.
// Processes of a run usually map the same shared memory, so only the largest such part counts. File pages do not count, because
// the kernel can drop them at any time. The usage is 0 if the process has ended, or if /proc hides it.
//
// If the main process has its own cgroup, Measure uses the cgroup's numbers, and adds the processes of the run outside of the
// cgroup.
func (m *MemoryMeter) Measure(mains []int) []Memory {
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
	of := make(map[int][]int, len(mains)) // processes of each run, by the PID of its main process
	for pid, main := range roots.Owners(all) {
		of[main] = append(of[main], pid)
	}
	out := make([]Memory, len(mains))
	for i, main := range mains {
		run, inside := m.cgroup(main, of[main])
		run.OOMKills, run.HasOwnCgroup = m.cgroups.oomKillsInOwnCgroup(main)
		for _, pid := range of[main] {
			run.CPU += all[pid].CPU + all[pid].ReapedCPU
			if !inside[pid] {
				run.Add(ParseMemory(procstat.Status(m.proc.readFile(strconv.Itoa(all[pid].LivingThread()) + "/status"))))
			}
		}
		out[i] = run
	}
	return out
}

// cgroup returns the memory of the cgroup that contains main, and the processes in this cgroup. pids lists the processes of
// main's run. If another run also uses the cgroup, the results are zero and nil.
func (m *MemoryMeter) cgroup(main int, pids []int) (out Memory, inside map[int]bool) {
	dir := m.cgroups.cgroupOf(main)
	if dir == "" {
		return Memory{}, nil
	}
	inside, ok := cgroupPIDs(dir)
	for _, p := range m.proc.stats {
		ok = ok && (!inside[p.PID] || p.Dead() || slices.Contains(pids, p.PID))
	}
	n, shared, _, measured := cgroupMemory(dir, true)
	if !ok || !measured {
		return Memory{}, nil
	}
	used, _, _, _ := cgroupMemory(dir, false)
	return Memory{Bytes: n, Swapped: n - min(n, used), Shared: shared}, inside
}

// ParseMemory returns the memory of one process according to its status file (proc_pid_status(5)). Bytes is RssAnon plus
// VmSwap, RssShmem and VmPTE (the page tables). The kernel counts shared memory in each process that maps it. Old kernels
// have no RssAnon; then VmRSS is used.
func ParseMemory(status procstat.Status) Memory {
	value := func(name string) uint64 { n, _ := status.Number(name, 10); return n << 10 }
	anon, swapped, shared := value("RssAnon"), value("VmSwap"), value("RssShmem")
	if _, found := status.Number("RssAnon", 10); !found {
		anon = value("VmRSS")
	}
	return Memory{Bytes: anon + swapped + shared + value("VmPTE"), Swapped: swapped, Shared: shared}
}

// Add adds another process of the same run. Shared memory counts once, with the larger value.
func (m *Memory) Add(p Memory) {
	m.Bytes += p.Bytes - min(m.Shared, p.Shared)
	m.Swapped, m.Shared = m.Swapped+p.Swapped, max(m.Shared, p.Shared)
}

// ContainerMemory is the memory of this container, as its control group reports it.
type ContainerMemory struct {
	Used    uint64  // bytes in use, without file pages that the kernel can drop
	Limit   uint64  // memory limit in bytes; 0 for no limit
	Shared  uint64  // part of Used in shared memory and tmpfs(5), including files that no process has open
	Kernel  uint64  // part of Used in kernel memory such as socket buffers, without page tables; 0 if unknown
	Stalled float64 // percentage of the last 10 s during which all processes waited for memory; 0 if unknown
}

const unlimitedMemory = 1 << 60

// ReadContainerMemory reads the memory of the container's own control group, version 2 or 1 (cgroups(7)). It never waits for
// a disk.
func ReadContainerMemory() ContainerMemory { return containerMemory(cgroupRoot) }

func containerMemory(root string) (c ContainerMemory) {
	for _, v := range []struct{ dir, limit string }{{root, "/memory.max"}, {root + "/memory", "/memory.limit_in_bytes"}} {
		limit, limited := readNumber(v.dir + v.limit)
		used, shared, kernel, ok := cgroupMemory(v.dir, false)
		if limited && limit < unlimitedMemory && ok {
			c.Limit, c.Used, c.Shared, c.Kernel = limit, used, shared, kernel
			break
		}
	}
	text, _ := os.ReadFile(root + "/memory.pressure")
	_, full, _ := strings.Cut(string(text), "full avg10=")
	_, _ = fmt.Sscan(full, &c.Stalled)
	return c
}

// maxOOMScoreAdj is the kernel's limit for oom_score_adj. A process with this value is killed first.
const maxOOMScoreAdj = 1000

// ownOOMScore returns the oom_score_adj of hinit itself (proc_pid_oom_score_adj(5)).
func ownOOMScore() int {
	text, _ := os.ReadFile("/proc/self/oom_score_adj")
	own, _ := strconv.Atoi(string(bytes.TrimSpace(text)))
	return own
}

// MaxOOMScoreIncrease returns how much the oom_score_adj of a process can exceed hinit's own.
func MaxOOMScoreIncrease() int { return maxOOMScoreAdj - ownOOMScore() }

// oomScoreFile is the file with the oom_score_adj of the process that opens it.
const oomScoreFile = "/proc/self/oom_score_adj"

// raiseOOMScore raises the oom_score_adj of a new process and its children to score, so that the kernel kills them before hinit
// when memory runs out. A process of another user runs LimitsName first and raises its own value, which is cheaper. The process
// can't inherit the value: hinit would have to raise its own before the fork, and the kernel could then kill hinit.
func (t *Table) raiseOOMScore(pid int, score string) {
	pids := []string{strconv.Itoa(pid)}
	for i := 0; i < len(pids) && i < maxExitedMarks; i++ {
		file := pids[i] + "/oom_score_adj"
		if now, _ := t.procfs.readAll(file); string(bytes.TrimSpace(now)) == strconv.Itoa(t.ownOOMScore) { // a service may have set its own value
			_ = WriteKernelFile("/proc/"+file, score)
		}
		list, _ := t.procfs.readAll(pids[i] + "/task/" + pids[i] + "/children")
		pids = append(pids, strings.Fields(string(list))...)
	}
}

// raiseAgain raises the oom_score_adj of started processes a second time, at least a second after the first. The kernel copies
// the value to a child at the beginning of fork(2), and lists the child at the end. So the first time misses a child that is
// being forked.
func (t *Table) raiseAgain() {
	for len(t.raised) > 0 && time.Since(t.raised[0].raisedAt) > time.Second { // longer than a fork takes
		t.raiseOOMScore(t.raised[0].mainPID, t.raised[0].oomScore) // for a reaped process the PID is 0, which has no files
		t.raised = t.raised[1:]
	}
}

// OOMKillCounter returns a function that counts the processes of this container that the kernel has killed for lack of memory.
// It returns nil if the kernel does not count them (cgroups(7)). The function keeps its file open, because the supervisor calls it at
// every exit. It never waits for a disk.
func OOMKillCounter() func() uint64 {
	for _, file := range []string{
		"/sys/fs/cgroup/memory.events",
		"/sys/fs/cgroup/memory/memory.oom_control",
	} {
		fd, _ := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if _, ok := oomKills(fd); ok {
			return func() uint64 { n, _ := oomKills(fd); return n }
		}
		_ = unix.Close(fd)
	}
	return nil
}

// oomKillsIn returns how many processes the kernel has killed for lack of memory in a control group of version 2.
func oomKillsIn(group string) (uint64, bool) {
	text, _ := os.ReadFile(group + "/memory.events")
	return numberField(text, "oom_kill")
}

func oomKills(fd int) (uint64, bool) {
	content := make([]byte, 1024)
	n, _ := unix.Pread(fd, content, 0)
	return numberField(content[:max(n, 0)], "oom_kill")
}
