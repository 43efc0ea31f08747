// Package serve dispatches the tasks of all boards until it is stopped.
//
// It makes a pass when a board's file changes, when a worker ends, and at deadlines; between them it does nothing. If the kernel
// does not report all changes (network file systems), it also makes a pass at each interval. Only one dispatcher of an installation
// serves at a time, by the lock that the agent's gateways use. The next one takes over when it ends, however it ends. It leaves its
// workers running.
//
// The package owns a goroutine for each board, one for the list of boards, and the goroutines that wait for a lock.
package serve
