package tuning

import (
	"fmt"
	"runtime"
	"sync"

	"hinit/internal/blocking"
)

const (
	// processors is how many goroutines of PID 1 may compute at the same time, however many processors the machine has: each costs a
	// thread, and memory.
	processors = 4
	// reserve is how many threads are for what neither computes nor takes a turn, at most one of each: the supervisor's loop (it forks
	// and reads /proc), the boot, the reports, the two consoles, whoever accepts connections, and two that wait for notifications.
	reserve = 8
	// atStart is how many the runtime has besides: its monitor, the one that waits for signals, the one that makes others, and what it
	// is at when the rest is made.
	atStart = 5
	// smallLimit is the limit of processes below which hinit makes do with as few threads as can be.
	smallLimit = 64
)

// MakeThreads makes all threads that the process will ever have. It must be called before anything else. The function that it returns
// waits until they are there. The error says that the container can't have so many.
//
// The Go runtime makes a thread whenever all of its threads are busy or wait for the kernel, and ends the process when it can't. So a
// service that has taken all process numbers of the container, which threads need too, would end the container. Threads that exist are
// used again and never given back. As many as can be needed: those that may compute, those that may wait (see [blocking.Turns]), and
// the reserve.
func MakeThreads() (made func(), err error) {
	n := min(runtime.GOMAXPROCS(0), processors)
	limit, limited := processLimit(cgroupDir)
	if limited && limit < smallLimit {
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
	}()
	return func() { <-done }, nil
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
