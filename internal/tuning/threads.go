package tuning

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/entry"
)

const (
	// processors is how many goroutines of PID 1 may compute at the same time, however many processors the machine has: each costs a
	// thread, and memory.
	processors = 4
	// reserve is how many threads serve goroutines that neither compute nor take a turn. These are the supervisor's loop (it forks
	// and reads /proc), the boot, the reports, and the two consoles. One accepts connections, and two wait for notifications.
	reserve = 8
	// atStart is how many threads the runtime has in addition. They are its monitor, the thread that waits for signals, the thread
	// that makes others, and the current one.
	atStart = 5
	// slack is how many threads do nothing at all. They hold process numbers for the start of the next program (re-execution), whose runtime
	// may make some threads more at its start than this one did.
	slack = 4
	// settleTime is how long the runtime may take to make the threads that it has decided on.
	settleTime = 5 * time.Second
	// smallLimit is the limit of processes below which hinit makes do with as few threads as can be.
	smallLimit = 64
)

// allowed is how many processors the container may use.
var allowed = runtime.NumCPU()

// Processors returns how many processors the container may use.
func Processors() int { return allowed }

// MakeThreads makes all threads that the process will ever have. It must be called before anything else. The function that it returns
// waits until they are there. The error says that the container can't have so many.
//
// The Go runtime makes a thread whenever all of its threads are busy or wait for the kernel, and ends the process when it can't. So a
// service that has taken all process numbers of the container, which threads need too, would end the container. Threads that exist are
// used again and never given back. As many as can be needed: those that may compute, those that may wait (see [blocking.Turns]), and
// the reserve. A successor that can have no thread more than its predecessor gives how many that had, and its processors; else they
// are 0.
func MakeThreads(most, mostProcessors int) (made func(), err error) {
	allowed = runtime.GOMAXPROCS(0)
	n := min(allowed, processors)
	if mostProcessors > 0 {
		n = min(n, mostProcessors)
	}
	limit, limited := processLimit(cgroupDir)
	if limited && limit < smallLimit || entry.Short || most > 0 && most < 1+blocking.Turns()+reserve {
		n = 1
		blocking.Few()
	}
	runtime.GOMAXPROCS(n) // it does not follow what the container is allowed any more
	threads := n + blocking.Turns() + reserve
	if limited && limit < threads+atStart {
		return nil, fmt.Errorf("cannot run where only %d processes are allowed: hinit alone needs %d threads; start the container with a higher --pids-limit", limit, threads+atStart)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		fillThreads(threads)
		now := settle()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		entry.Keep(threads + atStart + slack - now)
	}()
	return func() { <-done }, nil
}

// settle waits until the kernel has made every thread that the runtime has asked for, and returns how many there are. The runtime
// leaves some of that work to a thread of its own, which may be late. It may count a thread that it never makes, so settle gives up
// when the number has stayed the same for a quarter of a second. It looks a dozen times at most.
func settle() (threads int) {
	for wait := time.Millisecond; ; wait *= 2 {
		var task unix.Stat_t
		if unix.Stat("/proc/self/task", &task) != nil {
			return math.MaxInt16 // there is no /proc
		}
		before := threads
		threads = int(task.Nlink) - 2 // a directory has two links more than directories in it
		asked, _ := runtime.ThreadCreateProfile(nil)
		if asked <= threads || wait > 128*time.Millisecond && before == threads || wait > settleTime {
			return threads
		}
		<-time.After(wait)
	}
}

// fillThreads sees to it that there are so many threads.
func fillThreads(threads int) {
	var begun, ended sync.WaitGroup
	begun.Add(threads)
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // a goroutine that is bound to its thread keeps it while it waits
			begun.Done()
			begun.Wait()
			runtime.UnlockOSThread()
		})
	}
	ended.Wait()
}
