// Command idle makes as many threads as its argument says, collects garbage, and waits for the end of its input. No Go
// program with these threads can use less memory, so the benchmark compares PID 1 with it. It owns a goroutine for each
// thread.
package main

import (
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
)

func main() {
	threads, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(2)
	}
	var begun, ended sync.WaitGroup
	begun.Add(threads)
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread() // Locking gives each goroutine its own thread.
			begun.Done()
			begun.Wait()
			runtime.UnlockOSThread()
		})
	}
	ended.Wait()
	runtime.GC()
	debug.FreeOSMemory()
	os.Stdout.Close() // Closing standard output tells the benchmark that the program idles.
	_, _ = io.Copy(io.Discard, os.Stdin)
}
