package volume

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/fsutil"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/procstat"
	"hinit/internal/procusage"
	"hinit/profiles"
)

const (
	// cpuMeasureTime is how long the use of processors is measured.
	cpuMeasureTime = time.Second
	// minCPUWait is the minimum time that all threads of a profile together wait for a processor, in seconds per second, for the
	// profile to lack a processor.
	minCPUWait = 0.05
	// cpuSamples is how many times the processes are read during cpuMeasureTime.
	cpuSamples = 5
	// maxAffinityPasses is how many times setAffinity reads the processes of a user, to find newly started processes.
	maxAffinityPasses = 10
)

// tenant is a profile with its own user, with the measurements of its processes.
type tenant struct {
	boot.Gateway
	uid         uint32
	cpuUsed     float64   // processors that its processes used, on average
	cpuWait     float64   // threads that waited for a processor, on average
	confined    bool      // a thread of the profile already is limited to a few processors
	socketUsage diskUsage // open sockets of the profile; counted only if ports run out
}

// shareResources finds profiles that take processors, ports or pseudoterminals from others. A greedy profile is limited to
// fewer processors until it uses less. If ports or terminals run out, the gateway with most of them is to be restarted.
// shareResources needs no capability, because each step acts as the user of the profile.
func shareResources(ctx context.Context, o Options, list []boot.Gateway) (found []boot.Measurement) {
	all := make(map[uint32]*tenant)
	for uid, w := range gatewaysByUser(o, list) {
		all[uid] = &tenant{Gateway: w, uid: uid}
	}
	var every, fewer unix.CPUSet
	if err := unix.SchedGetaffinity(0, &every); err != nil {
		return nil
	}
	confined := max(1, every.Count()/4) // number of processors for a profile that takes too many
	for cpu := len(every)*64 - 1; fewer.Count() < confined; cpu-- {
		if every.IsSet(cpu) {
			fewer.Set(cpu)
		}
	}
	demand := procstat.ReadMachineLoad()
	measureCPUUse(ctx, all, &every, &fewer)
	crowded := demand.Busy(every.Count()) && procstat.ReadMachineLoad().Busy(every.Count())
	tenants := slices.Collect(maps.Values(all))
	greedy := greedyTenants(tenants, crowded, float64(confined))
	first, last := sysctl("net/ipv4/ip_local_port_range")
	ports := last - first + 1
	hog := portHog(tenants, demand.Sockets, ports, func() int { return countSockets(o, list, tenants) })
	terminals, _ := sysctl("kernel/pty/max")
	reserved, _ := sysctl("kernel/pty/reserve")
	terminals -= reserved
	opener := terminalHog(tenants, demand.Terminals, terminals, "/dev/pts")
	for _, t := range tenants {
		out := boot.Measurement{Service: t.Service, Run: t.RunNumber}
		switch {
		case every.Count() < 2, t.HasCPUAffinity, proc.InServiceCgroup(t.MainPID, t.Service):
		case greedy[t]:
			out.Note = fmt.Sprintf("processors: others wait while it takes more than its share, so it has %d of %d until it rests", confined, every.Count())
			setAffinity(t.uid, &fewer)
		case t.confined:
			setAffinity(t.uid, &every)
		}
		if t == hog {
			out.Restart = fmt.Sprintf("its processes hold up to %d sockets, and %d of the %d ports that the kernel chooses are taken", t.socketUsage.ports, demand.Sockets, ports)
		}
		if t == opener {
			out.Restart = fmt.Sprintf("it holds more terminals than other profiles, and %d of the machine's %d are taken", demand.Terminals, terminals)
		}
		found = append(found, out)
	}
	return found
}

// greedyTenants reports which profiles must be limited to a few processors; the parameter processors is their number. A profile
// is greedy if it uses more than its share while another profile waits and gets less than half of its own share. Unless crowded
// says that processors are scarce, no profile is greedy.
//
// A confined profile stays greedy until it uses less than half of its processors, waits although it uses less than its share,
// or is the only active profile. The waits of a confined profile make no other profile greedy.
func greedyTenants(tenants []*tenant, crowded bool, processors float64) map[*tenant]bool {
	total, weights := 0.0, 0
	active := func(t *tenant) bool { return t.cpuUsed > 0.02 || t.cpuWait >= minCPUWait }
	for _, t := range tenants {
		if active(t) {
			total, weights = total+t.cpuUsed, weights+cmp.Or(t.CPUWeight, 100)
		}
	}
	fair := func(t *tenant) float64 { return total * float64(cmp.Or(t.CPUWeight, 100)) / float64(weights) }
	waits := func(t *tenant, share float64) bool { return t.cpuWait >= minCPUWait && t.cpuUsed < share }
	hungry := slices.ContainsFunc(tenants, func(t *tenant) bool { return !t.confined && waits(t, fair(t)/2) })
	out := make(map[*tenant]bool)
	for _, t := range tenants {
		stays := t.confined && t.cpuUsed >= processors/2 && t.cpuUsed < total && !waits(t, fair(t))
		out[t] = crowded && (stays || hungry && active(t) && t.cpuUsed > fair(t))
	}
	return out
}

// sysctl returns the one or two numbers in a file of /proc/sys. A missing first number is 0, and a missing second one is -1.
func sysctl(name string) (first, second int) {
	text, _ := os.ReadFile("/proc/sys/" + name)
	second = -1
	_, _ = fmt.Sscan(string(text), &first, &second)
	return first, second
}

// terminalHog returns the profile that owns most of the terminals in dir, if it owns at least a quarter of all
// pseudoterminals. It returns nil for a smaller share, or if less than three quarters are in use. The kernel gives each
// terminal to the user who has opened it.
func terminalHog(tenants []*tenant, used, allowed int, dir string) (hog *tenant) {
	if allowed <= 0 || used < allowed/4*3 {
		return nil
	}
	owned, most := make(map[uint32]int), allowed/4
	names, _ := os.ReadDir(dir)
	for _, name := range names {
		if info, err := name.Info(); err == nil {
			owned[fsutil.UID(info)]++
		}
	}
	for _, t := range tenants {
		if owned[t.uid] >= most {
			hog, most = t, owned[t.uid]
		}
	}
	return hog
}

// portHog returns the profile that probably exhausts the ports, or nil. It needs three quarters as many open sockets as
// ports. The result is the profile with the most sockets that may have ports, if they are at least a quarter of the number of
// ports. count counts the sockets of the profiles, and returns the sum. A profile that may hide sockets counts with at least as
// many sockets as belong to no known profile. Chance decides between equal profiles, because the order of tenants is random.
func portHog(tenants []*tenant, sockets, ports int, count func() int) (hog *tenant) {
	if ports == 0 || sockets < ports/4*3 {
		return nil
	}
	unseen, most := sockets-count(), ports/4
	for _, t := range tenants {
		if t.socketUsage.hidesFiles || t.socketUsage.incomplete {
			t.socketUsage.ports = max(t.socketUsage.ports, unseen)
		}
		if t.socketUsage.ports >= most {
			hog, most = t, t.socketUsage.ports
		}
	}
	return hog
}

// countSockets counts the open sockets of each profile, for sharedMemorySearchTimeout at most, and returns the sum.
func countSockets(o Options, list []boot.Gateway, tenants []*tenant) (seen int) {
	processes, _ := gatewayProcesses(o, list)
	end := time.Now().Add(sharedMemorySearchTimeout)
	for i, t := range tenants {
		t.socketUsage.deadline = time.Now().Add(time.Until(end) / time.Duration(len(tenants)-i))
		_ = t.socketUsage.eachProcess("/proc/", processes[t.Service], func(dir string) { // without the right to act as the user, this process counts no socket
			t.socketUsage.addOpenDeleted(dir+"/fd/", func(string, uint64) bool { return false })
		})
		seen += t.socketUsage.sockets
	}
	return seen
}

// measureCPUUse measures the processes of each profile for cpuMeasureTime, and stores the results in all, by uid. every is the
// set of all processors, and fewer is the set for greedy profiles.
func measureCPUUse(ctx context.Context, all map[uint32]*tenant, every, fewer *unix.CPUSet) {
	begin := time.Now()
	before, _ := procusage.ReadProcesses("/proc")
	threads := make(map[int]threadTime)
	for pid := range before {
		if uid, _ := procstat.ReadStatus(strconv.Itoa(pid)).Number("Uid", 10); all[uint32(uid)] != nil {
			maps.Copy(threads, threadTimes(pid, every, fewer, maxNice))
		}
	}
	fromMax, _ := unix.Getpriority(unix.PRIO_PROCESS, os.Getppid()) // 20 minus the nice value of hinit
	looked := begin
	for range cpuSamples {
		pause.For(ctx, cpuMeasureTime/cpuSamples)
		now, passed := make(procusage.Table), time.Since(looked)
		_ = procstat.EachProcess("/proc", func(p procstat.Stat) {
			if now[p.PID] = p; p != before[p.PID] { // an unchanged process has not run since the last sample
				if uid, _ := procstat.ReadStatus(strconv.Itoa(p.PID)).Number("Uid", 10); all[uint32(uid)] != nil {
					all[uint32(uid)].cpuUsed += processorsUsed(p, before[p.PID], passed) / cpuSamples
				}
			}
		})
		before, looked = now, looked.Add(passed)
	}
	passed := time.Since(begin)
	for pid := range before {
		uid, _ := procstat.ReadStatus(strconv.Itoa(pid)).Number("Uid", 10)
		if t := all[uint32(uid)]; t != nil {
			for id, thread := range threadTimes(pid, every, fewer, maxNice+1-fromMax+t.Nice) {
				t.cpuWait += thread.waitedSince(threads[id], passed).Seconds() / passed.Seconds()
				t.confined = t.confined || thread.confined
			}
		}
	}
}

// processorsUsed returns how many processors the process p has used on average since the last sample. old is the process in that
// sample, passed the time since. A new process counts with its whole life, for the processes that begin and end between two
// samples. The kernel drops the time of such a process if the parent ignores SIGCHLD (getrusage(2)).
func processorsUsed(p, old procstat.Stat, passed time.Duration) float64 {
	if old.Start == p.Start {
		return float64(p.CPU-min(p.CPU, old.CPU)) / procstat.TicksPerSecond / passed.Seconds()
	}
	ran := time.Duration(p.CPU) * time.Second / procstat.TicksPerSecond
	var first time.Duration // time of the first thread only, in nanoseconds; p.CPU has hundredths of a second
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.PID))
	_, _ = fmt.Sscan(string(text), &first)
	return max(ran, first).Seconds() / max(time.Since(procstat.StartedAt(p.Start)), ran/time.Duration(max(1, p.Threads)), first, time.Millisecond).Seconds()
}

// threadTime is how long a thread has run, and how long it has waited for a processor (proc_pid_schedstat(5)). The waiting time
// grows at the end of a wait. Unlike the state R, it doesn't grow while the thread runs.
type threadTime struct {
	ran, waited time.Duration
	runnable    bool // the thread runs or waits for a processor
	confined    bool // the thread may use only a few processors
}

// maxNice is the highest nice value, for the threads that wait most.
const maxNice = 19

// threadTimes returns the times of a process's threads, by thread. ran and waited are 0 for a thread whose waits prove nothing.
// The agent may have limited such a thread to some processors, so that it waits although others are idle. Or the agent has
// given it a higher nice value than nice, or the scheduling policy SCHED_IDLE.
func threadTimes(pid int, every, fewer *unix.CPUSet, nice int) map[int]threadTime {
	times := make(map[int]threadTime)
	_ = procstat.EachProcess(fmt.Sprintf("/proc/%d/task", pid), func(p procstat.Stat) {
		var may unix.CPUSet
		attr, err := unix.SchedGetAttr(p.PID, 0)
		_ = unix.SchedGetaffinity(p.PID, &may)
		t := threadTime{confined: may == *fewer}
		if (t.confined || may == *every) && (err != nil || attr.Policy != unix.SCHED_IDLE && int(attr.Nice) <= nice) {
			text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/schedstat", pid, p.PID))
			t.runnable = p.State == 'R'
			_, _ = fmt.Sscan(string(text), &t.ran, &t.waited) // both times are in nanoseconds; 0 if the kernel doesn't report them
		}
		times[p.PID] = t
	})
	return times
}

// waitedSince returns how long a thread has waited during a period of length passed. old has the times of the thread at the
// beginning of the period.
func (t threadTime) waitedSince(old threadTime, passed time.Duration) time.Duration {
	if old.runnable && t.ran == old.ran && t.ran > 0 { // the thread has not run, so it still waits
		return passed
	}
	return min(passed, t.waited-min(old.waited, t.waited)) // the wait may have begun before the period
}

// setAffinity limits all processes of the user uid to the processors in set. The processes can't undo this limit
// (internal/isolation/confine). During the call, the thread has uid as its effective uid; otherwise it would need CAP_SYS_NICE.
func setAffinity(uid uint32, set *unix.CPUSet) {
	runtime.LockOSThread()
	keep := ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		runtime.UnlockOSThread()
		return
	}
	for pass, changed := 0, true; changed && pass < maxAffinityPasses; pass++ {
		changed = false
		_ = procstat.EachProcess("/proc", func(p procstat.Stat) {
			if owner, is := procstat.ReadStatus(strconv.Itoa(p.PID)).Number("Uid", 10); !is || uint32(owner) != uid {
				return
			}
			_ = procstat.EachProcess(fmt.Sprintf("/proc/%d/task", p.PID), func(thread procstat.Stat) {
				var has unix.CPUSet
				if unix.SchedGetaffinity(thread.PID, &has) == nil && has != *set {
					changed = unix.SchedSetaffinity(thread.PID, set) == nil || changed
				}
			})
		})
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep); errno == 0 {
		runtime.UnlockOSThread() // after an error the thread stays locked, and ends with its goroutine
	}
}

// gatewayProcesses returns the processes of the gateways in list, by service; all other processes are under "". An orphan that
// has left its parent, group and session is found by its mark, a resource limit that every process of a gateway inherits. A
// tenant's processes are also found by their user. The result has a living thread of each process, see
// [procstat.Stat.LivingThread].
func gatewayProcesses(o Options, list []boot.Gateway) (map[string][]int, error) {
	roots := proc.ServiceRoots{Init: os.Getppid(), Mains: make(map[int]string), Mark: procusage.MarkReader("/proc")}
	for _, w := range list {
		if w.MainPID != 0 {
			roots.Mains[w.MainPID] = w.Service
		}
	}
	all, err := procusage.ReadProcesses("/proc")
	if err != nil {
		return nil, err
	}
	users, owners, found := gatewaysByUser(o, list), roots.Owners(all), make(map[string][]int)
	for pid, p := range all {
		service := roots.Mains[owners[pid]]
		if len(users) > 0 {
			uid, _ := procstat.ReadStatus(strconv.Itoa(pid)).Number("Uid", 10)
			service = cmp.Or(users[uint32(uid)].Service, service)
		}
		found[service] = append(found[service], p.LivingThread())
	}
	return found, nil
}

// gatewaysByUser returns the gateways in list whose profiles are tenants, by the tenant's uid. It ignores other services in list.
func gatewaysByUser(o Options, list []boot.Gateway) map[uint32]boot.Gateway {
	users := make(map[uint32]boot.Gateway)
	homes, err := fsutil.OpenDir(o.Home+"/"+boot.ProfilesDir, fsutil.ProcessActor())
	if err != nil {
		return users
	}
	defer homes.Close()
	for _, w := range list {
		if info, err := homes.Lstat(w.Profile); err == nil && w.Service == profiles.SlotName(w.Profile) && o.Tenants.HasUID(fsutil.UID(info)) {
			users[fsutil.UID(info)] = w
		}
	}
	return users
}
