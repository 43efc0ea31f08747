// Package serve dispatches the tasks of all boards until it is stopped.
//
// It makes a pass when a board's file changes, when a worker ends, and at deadlines; between them it does nothing. If the kernel
// does not report all changes (network file systems), it also makes a pass at each interval. Only one dispatcher at a time serves
// a board. It holds the board's lock, which the agent's gateways take for their passes. When it ends, for whatever reason, its
// workers go on and the next dispatcher takes over.
//
// The package owns a goroutine for each board, one for the list of boards, and the goroutines that wait for a lock.
package serve
