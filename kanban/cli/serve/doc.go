// Package serve dispatches the tasks of all boards until it is stopped.
//
// It makes a pass when a board's file changes, when a worker ends, and at deadlines. Otherwise it is idle. If the kernel does not
// report all changes (network file systems), it also makes a pass at each interval. Only one dispatcher at a time serves a board:
// it holds the board's lock, which the agent's gateways also need for a pass. When a dispatcher ends, for whatever reason, its
// workers continue and the next dispatcher takes over.
//
// The package owns a goroutine for each board, one for the list of boards, and the goroutines that wait for a lock.
package serve
