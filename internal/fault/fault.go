// Package fault makes calls of the kernel fail on purpose, in binaries that are built for tests.
//
// The packages at the boundary of hinit call it around each call that tests want to fail. They are internal/proc,
// internal/fsutil, logrotate and the watcher of profiles. [Before] can replace the call by an error or a delay. [Room] can
// shorten a write. [After] can end the process as if it had been killed at that moment. A binary that is built without the tag
// "faults" has none of this, and every shipped binary is built so.
//
// With the tag, the environment variable HINIT_FAULTS names a file with one rule a line, which is read again whenever it
// changes:
//
//	CALL NAME EFFECT [skip=N] [times=N]
//
// CALL is one of the constants below, or "*". NAME is a part of the name that the call is about, or "*". EFFECT is one of the
// following. The name of an error (ENOSPC) fails the call. "delay=D" delays it for so long, or until the rules change. "short=N"
// shortens a write to N bytes. "crash" ends the process right after the call. "trace=FILE" appends the call and its name to a
// file; with a delay, when the delay begins. The first skip calls that match are spared, and the rule is used up after times. The
// package owns no goroutine.
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
