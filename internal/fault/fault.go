// Package fault makes calls of the kernel fail on purpose, in binaries that are built for tests.
//
// The packages at the boundary of hinit (internal/proc, internal/fsutil, logrotate and the watcher of profiles) tell it of
// each call that tests want to fail: [Before] can put an error or a delay in the place of the call, [Room] can make a write
// a short one, and [After] can end the process as if it had been killed at that very moment. In a binary that is built
// without the tag "faults", which is every binary that is shipped, the three do nothing and the compiler leaves them out.
//
// With the tag, the environment variable HINIT_FAULTS names a file with one rule a line, which is read again whenever it
// changes:
//
//	CALL NAME EFFECT [skip=N] [times=N]
//
// CALL is one of the constants below, or "*". NAME is a part of the name that the call is about, or "*". EFFECT is the name
// of an error (ENOSPC), "delay=D" (for so long, or until the rules change), "short=N" (a write takes only N bytes, of those that
// have room for a part), "crash" (end at once after the call), or "trace=FILE" (append the call and its name to a file; with a
// delay, when that begins). The first skip calls that match are spared, and the rule is used up after times. The package owns no
// goroutine.
package fault

// Call is a kind of call that can be made to fail.
type Call string

// The calls.
const (
	Fork     Call = "fork"     // a process is started; the name is its program
	Pipe     Call = "pipe"     // the output of a service gets its pipes
	Open     Call = "open"     // a file is opened or made, or a directory opened
	Chmod    Call = "chmod"    //
	Write    Call = "write"    //
	Sync     Call = "sync"     //
	Rename   Call = "rename"   // the name is the old one
	Remove   Call = "remove"   //
	Mkdir    Call = "mkdir"    //
	Truncate Call = "truncate" //
	Watch    Call = "watch"    // inotify: "" is an instance, else a directory
	Lock     Call = "lock"     // of a directory
)
