// Package faultinject makes system calls fail on purpose, in binaries that are built for tests.
//
// The packages that make system calls call it around each call that tests want to fail. They are internal/proc, internal/fsutil,
// logrotate and the watcher of profiles. [Before] can replace the call by an error or delay it. [Room] can shorten a write.
// [After] can end the process as if it had been killed at that moment. A binary built without the tag "faults" has none of this;
// all released binaries are built so.
//
// With the tag, the environment variable HINIT_FAULTS names a file with one rule a line, which is read again whenever it changes:
//
// CALL NAME EFFECT [skip=N] [times=N]
//
// CALL is one of the constants below, or "*". NAME is a part of the name that the call is about, or "*". EFFECT is one of the
// following. The name of an error (ENOSPC) makes the call fail. "delay=D" delays it for that time, or until the rules change.
// "short=N" shortens a write to N bytes. "crash" ends the process right after the call. "trace=FILE" appends the call and its
// name to a file; with a delay, when the delay begins. The first skip matching calls are spared. After times uses the rule has no
// effect. The package owns no goroutine.
package faultinject

// Call is a kind of system call.
type Call string

// The calls.
const (
	Fork     Call = "fork"     // starts a process; the name is its program
	Pipe     Call = "pipe"     // makes the pipes for the output of a service
	Open     Call = "open"     // opens or creates a file, or opens a directory
	Chmod    Call = "chmod"    //
	Write    Call = "write"    //
	Sync     Call = "sync"     //
	Rename   Call = "rename"   // the name is the old name
	Remove   Call = "remove"   //
	Mkdir    Call = "mkdir"    //
	Truncate Call = "truncate" //
	Watch    Call = "watch"    // inotify: the name is "" for an instance, else a directory
	Lock     Call = "lock"     // locks a directory
)
