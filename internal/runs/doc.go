// Package runs starts commands that run once, at a client's request, and remembers how they ended.
//
// A run is a supervisor unit that is never restarted. The supervisor's loop starts it, ends its whole tree (TERM, grace, KILL)
// and knows how it ended. A [Book] keeps what the loop does not need: the tag that the client gave, the time limit, and runs that
// the loop has forgotten. PID 1 has one behind its control API. A program without PID 1 makes one with package local.
//
// The package promises: a tag starts one process at most, however often a client asks. A run counts as ended only when all its
// processes have ended. The last [Kept] ended runs are remembered. A Book owns one goroutine, which follows the loop until the
// loop ends, and a timer for each run with a limit.
package runs
