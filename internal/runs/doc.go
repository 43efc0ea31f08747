// Package runs starts commands that run once, at a client's request, and remembers how they ended.
//
// A run is a supervisor unit that never restarts. The supervisor's loop starts it, ends its whole process tree (SIGTERM, grace,
// SIGKILL) and records its exit. A [Book] keeps what the loop does not need: the client's tag, the time limit, and runs that the
// loop has forgotten. PID 1 has a Book behind its control API. A program without PID 1 makes a Book with package local.
//
// A tag starts at most one process, however often a client asks. A run has ended only after all its processes have ended. A Book
// remembers the last [MaxEndedRuns] ended runs. It owns one goroutine, which follows the loop until the loop ends, and a timer
// for each run with a time limit.
package runs
