package tuning

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/entry"
)

const (
	// maxComputing is how many goroutines of PID 1 may compute at the same time, even on a machine with more processors. Each
	// needs a thread, and so memory.
	maxComputing = 4
	// reservedThreads is the number of threads for goroutines that may block in the kernel outside the limits of package
	// blocking. These are the supervisor's loop (which forks and reads /proc), the boot, the reports, and the two consoles. One
	// more accepts connections, and two wait for notifications.
	reservedThreads = 8
	// runtimeThreads is the number of threads that the Go runtime needs for itself, such as its monitor and the thread that
	// waits for signals.
	runtimeThreads = 5
	// spareThreads is the number of threads that do no work. They occupy PIDs that become free at a re-execution, because the
	// runtime of the next program may make a few more threads when it starts.
	spareThreads = 4
	// awaitThreadsTimeout limits how long awaitThreads waits for threads that the runtime has begun to make.
	awaitThreadsTimeout = 5 * time.Second
	// smallProcessLimit is the process limit of a container below which hinit uses as few threads as possible.
	smallProcessLimit = 64
)

// allowedProcessors is the number of processors that the container may use.
var allowedProcessors = runtime.NumCPU()

// Processors returns the number of processors that the container may use.
func Processors() int { return allowedProcessors }

// ParallelStarts returns limits for the start of gateways. first is how many may start at the same time. spare is how many more
// may start as soon as one of them is ready. setting is start.parallel of hinit.yaml: a number, or "auto" for values that
// depend on the number of processors.
func ParallelStarts(setting string) (first, spare int) {
	if n, err := strconv.Atoi(setting); err == nil {
		return n, 0
	}
	return allowedProcessors, 2 * allowedProcessors
}

// MakeThreads makes all threads that the process will ever have. Call it before all other work. made blocks until the threads
// exist. The error means that the container does not allow so many threads.
//
// When all threads are busy or blocked in the kernel, the Go runtime makes a new one, and crashes the process if it can't. A
// thread needs a process number, so a service that uses up the container's process numbers could crash PID 1. Therefore
// MakeThreads makes as many threads as can ever be needed: for goroutines that compute, for calls that may block (see
// [blocking.TotalTurns]), and the reserve. The runtime reuses threads and never ends them.
//
// After a re-execution, most and maxProcessors are the numbers of threads and processors of the old program. The new program
// must not exceed them. In a new container, both are 0.
func MakeThreads(most, maxProcessors int) (made func(), err error) {
	allowedProcessors = min(runtime.GOMAXPROCS(0), processorLimit(cgroupDir))
	n := min(allowedProcessors, maxComputing, cmp.Or(maxProcessors, maxComputing))
	limit, limited := processLimit(cgroupDir)
	if limited && limit < smallProcessLimit || entry.FewThreads || most > 0 && most < 1+blocking.TotalTurns()+reservedThreads {
		n = 1
		blocking.MinimizeTurns()
	}
	runtime.GOMAXPROCS(n) // keep this number even if the container's share of processors changes
	threads := n + blocking.TotalTurns() + reservedThreads
	if limited && limit < threads+runtimeThreads {
		return nil, fmt.Errorf("cannot run where only %d processes are allowed: hinit alone needs %d threads; raise the limit (docker: --pids-limit; a pod: podPidsLimit of the kubelet)", limit, threads+runtimeThreads)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		createThreads(threads)
		now := awaitThreads()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		entry.OccupyPIDs(threads + runtimeThreads + spareThreads - now)
	}()
	return func() { <-done }, nil
}

// processorLimit returns the number of processors that the container's control group (version 2) allows, rounded as the Go runtime
// does. The runtime sees only the limit of its own group, which after a re-execution may be a child of the container's group
// (proc.DivideCgroup).
func processorLimit(cgroup string) int {
	text, _ := os.ReadFile(cgroup + "/cpu.max")
	var quota, period int
	if _, err := fmt.Sscan(string(text), &quota, &period); err != nil || period <= 0 {
		return math.MaxInt // a quota without a limit has the value "max"
	}
	return max(2, (quota+period-1)/period)
}

// awaitThreads waits until the kernel has made every thread that the runtime has requested, and returns the number of threads.
// The runtime makes some through another thread, which may be late. It may also count a thread that it never makes, so
// awaitThreads gives up when the number has not changed for a quarter of a second. It checks a dozen times at most.
func awaitThreads() (threads int) {
	for wait := time.Millisecond; ; wait *= 2 {
		var task unix.Stat_t
		if unix.Stat("/proc/self/task", &task) != nil {
			return math.MaxInt16 // without /proc the number is unknown
		}
		before := threads
		threads = int(task.Nlink) - 2 // a directory has two more links than subdirectories
		asked, _ := runtime.ThreadCreateProfile(nil)
		if asked <= threads || wait > 128*time.Millisecond && before == threads || wait > awaitThreadsTimeout {
			return threads
		}
		<-time.After(wait)
	}
}

// createThreads makes the runtime create the given number of threads. It locks as many goroutines to threads at the same time.
func createThreads(threads int) {
	var started, ended sync.WaitGroup
	started.Add(threads)
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // a goroutine that is locked to its thread keeps it while it waits
			started.Done()
			started.Wait()
			runtime.UnlockOSThread()
		})
	}
	ended.Wait()
}
