// Package serve dispatches the tasks of all boards until it is stopped.
//
// It makes a pass over a board when the board's file changes, when a worker ends, and when a deadline has come. Otherwise it
// is idle. On a network file system, whose changes the kernel does not report, it also makes a pass at each interval.
//
// Only one dispatcher serves a board at a time: it holds the board's lock, which the agent's gateways also need for a pass.
// When a dispatcher ends for any reason, its workers continue and the next dispatcher takes over.
//
// The package owns a goroutine for each board, one for the list of boards, and the goroutines that wait for a lock.
package serve
