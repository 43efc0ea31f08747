// Package faultinject makes system calls fail on purpose, in binaries that are built for tests.
//
// Packages call its functions around each system call that tests want to fail. These packages are internal/proc,
// internal/fsutil, logrotate and the watcher of profiles. [BeforeCall] can replace the call with an error or delay it.
// [AllowedBytes] can shorten a write. [AfterCall] can end the process as if it had been killed at that moment. In a binary built
// without the tag "faults", such as every released binary, these functions do nothing.
//
// With the tag, the environment variable HINIT_FAULTS contains the path of a file of rules, which is read again whenever it
// changes. Each line is one rule:
//
// CALL NAME EFFECT [skip=N] [times=N]
//
// CALL is one of the constants below, or "*". NAME is a part of the name that the call works on (usually a file name), or "*".
// EFFECT is one of the following. The name of an error, such as ENOSPC, makes the call fail with this error. "delay=D" delays it
// for that time, or until the rules change. "short=N" shortens a write to N bytes. "crash" ends the process right after the call.
// "trace=FILE" appends the call and its name to a file; with a delay, when the delay begins. With skip, the rule ignores the
// first N matching calls. With times, it applies to at most N calls. The package owns no goroutine.
package faultinject

// Call is a kind of system call that can be made to fail.
type Call string

// The kinds of system calls, by their names in a rule.
const (
	CallFork     Call = "fork"   // start of a process; NAME is its program
	CallPipe     Call = "pipe"   // creation of the pipes for the output of a service
	CallOpen     Call = "open"   // opening or creation of a file, or opening of a directory
	CallChmod    Call = "chmod"  // change of the mode of a file
	CallWrite    Call = "write"  // write to a file
	CallSync     Call = "sync"   // sync of a file or a directory
	CallRename   Call = "rename" // renaming of a file; NAME is the old name
	CallRemove   Call = "remove" // removal of a file or a directory
	CallMkdir    Call = "mkdir"
	CallTruncate Call = "truncate" // truncation of a file
	CallWatch    Call = "watch"    // creation of an inotify instance (NAME is ""), or watch of the directory NAME
	CallLock     Call = "lock"     // lock of a directory
)

// RunCall makes a system call, after [BeforeCall].
func RunCall(c Call, name string, call func() error) error {
	if err := BeforeCall(c, name); err != nil {
		return err
	}
	return call()
}
