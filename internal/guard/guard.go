// Package guard makes sure that a panic in a goroutine does not end PID 1 silently.
//
// Every goroutine that hinit starts begins with a deferred [Catch]. In a process that has set a handler, as PID 1 does, the
// handler is called with every panic. In any other process (the command line, tests) Catch does nothing, and the Go runtime ends
// the process as usual. A fatal error of the runtime itself (a concurrent map write, no memory, a corrupt heap) can't be caught.
//
// The package owns no goroutine, and the handler is its only state.
package guard

import (
	"runtime/debug"
	"sync/atomic"
)

// Handler handles a panic, in the goroutine that panicked. doing describes what the goroutine was doing. When Handler returns,
// the goroutine ends.
type Handler func(doing string, value any, stack []byte)

// handler is shared by the whole process, because any goroutine of any package may panic.
var handler atomic.Pointer[Handler]

// Handle makes h the handler of this process. If h is nil, the process has no handler.
func Handle(h Handler) {
	if h == nil {
		handler.Store(nil)
		return
	}
	handler.Store(&h)
}

// Catch passes a panic of this goroutine to the handler. It must be deferred as the first statement of a goroutine. doing
// describes the goroutine's work for error messages.
func Catch(doing string) {
	h := handler.Load()
	if h == nil {
		return
	}
	if p := recover(); p != nil {
		(*h)(doing, p, debug.Stack())
	}
}

// Go runs f in a new goroutine with a deferred Catch.
func Go(doing string, f func()) {
	go func() {
		defer Catch(doing)
		f()
	}()
}

// Func returns a function that calls f with a deferred Catch. It is meant for timers, which run f in a goroutine.
func Func(doing string, f func()) func() {
	return func() {
		defer Catch(doing)
		f()
	}
}
