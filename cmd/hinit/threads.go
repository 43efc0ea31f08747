package main

import (
	"runtime"
	"sync"
)

// threads is how many threads the process has from the start. The Go runtime makes one whenever all of its are busy or wait for
// the kernel, and ends the process when it can't. A service that has taken all process numbers of the container, which threads
// need too, would so end the container. Threads that are there already are used again and never given back. What needs more than
// these is a volume that holds up many calls at once.
const threads = 16

// makeThreads makes them, beside what comes first in the life of hinit. The function that it returns waits until they are there.
func makeThreads() (made func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		fillThreads()
	}()
	return func() { <-done }
}

func fillThreads() {
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
