// Package guard reports a panic in any goroutine, so that PID 1 does not end without a word.
//
// Every goroutine of hinit begins with a deferred [CatchPanic]. If the process has set a handler, as PID 1 does, the handler gets
// every panic. In any other process (the command line, tests) Catch does nothing, and the Go runtime ends the process as
// usual. A fatal error of the runtime itself (a concurrent map write, no memory, a corrupt heap) can't be caught.
//
// The package owns no goroutine. The handler is its only state.
package guard

import (
	"runtime/debug"
	"sync/atomic"
)

// PanicHandler handles a panic, in the goroutine that has panicked. doing says what the goroutine was doing. When PanicHandler
// has returned, the goroutine ends.
type PanicHandler func(doing string, value any, stack []byte)

// panicHandler belongs to the whole process, because a goroutine of any package may panic.
var panicHandler atomic.Pointer[PanicHandler]

// SetPanicHandler sets the handler of this process. nil removes it.
func SetPanicHandler(h PanicHandler) {
	if h == nil {
		panicHandler.Store(nil)
		return
	}
	panicHandler.Store(&h)
}

// CatchPanic passes a panic of this goroutine to the handler. Defer it in the first statement of a goroutine. doing says what the
// goroutine does, for the report.
func CatchPanic(doing string) {
	h := panicHandler.Load()
	if h == nil {
		return
	}
	if p := recover(); p != nil {
		(*h)(doing, p, debug.Stack())
	}
}

// Go runs f in a goroutine that begins with a deferred CatchPanic.
func Go(doing string, f func()) {
	go func() {
		defer CatchPanic(doing)
		f()
	}()
}

// GoWithDone is Go, and returns a channel that is closed when f has ended.
func GoWithDone(doing string, f func()) (ended <-chan struct{}) {
	done := make(chan struct{})
	Go(doing, func() {
		defer close(done)
		f()
	})
	return done
}

// WrapFunc returns f with a deferred CatchPanic. Use it for the function of a timer, which runs in a goroutine of its own.
func WrapFunc(doing string, f func()) func() {
	return func() {
		defer CatchPanic(doing)
		f()
	}
}
