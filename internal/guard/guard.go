// Package guard sees to it that no panic of a goroutine ends PID 1 unseen.
//
// Every goroutine that hinit starts for itself begins with a deferred [Catch]. In a process that has a handler (the init) a panic
// is reported to it. In any other (the command line, tests) Catch does nothing, and the Go runtime ends the process as always. A
// fatal error of the runtime itself (a concurrent map write, no memory, a corrupt heap) can't be caught.
//
// The package owns no goroutine and, besides the handler, no state.
package guard

import (
	"runtime/debug"
	"sync/atomic"
)

// Handler is told of a panic, in the goroutine that panicked: what it was doing, the value and the stack. When it returns,
// the goroutine ends.
type Handler func(doing string, value any, stack []byte)

// handler is one a process: a goroutine of any package may panic, and there is one thing to do about it.
var handler atomic.Pointer[Handler]

// Handle makes h the handler of this process; nil takes it away.
func Handle(h Handler) {
	if h == nil {
		handler.Store(nil)
		return
	}
	handler.Store(&h)
}

// Catch is to be deferred by a goroutine, first of all. doing is what the goroutine does, for people.
func Catch(doing string) {
	h := handler.Load()
	if h == nil {
		return
	}
	if p := recover(); p != nil {
		(*h)(doing, p, debug.Stack())
	}
}

// Go runs f in a goroutine with a Catch.
func Go(doing string, f func()) {
	go func() {
		defer Catch(doing)
		f()
	}()
}

// Func is f with a Catch, for a timer.
func Func(doing string, f func()) func() {
	return func() {
		defer Catch(doing)
		f()
	}
}
