// Package serve dispatches the tasks of all boards for as long as it runs.
//
// It wakes up when a board's file changes, when a worker ends, and at deadlines; between them it does nothing. Where the kernel does not
// tell of all changes (network file systems) it looks every interval besides. One dispatcher of an installation serves at a time, by
// the lock that the agent's gateways use; the next one takes over when it ends, however it ends. It leaves its workers running.
//
// The package owns a goroutine for each board, one for the list of boards, and those that wait for a lock.
package serve
