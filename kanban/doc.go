// Package kanban is the task board that agent profiles share, and the dispatcher that starts a worker for each ready task.
//
// The board is one SQLite file that other programs write at the same time, such as the agent's Python dispatcher. So every change
// is one immediate transaction that checks the state it depends on, with the same conditions as the other programs. A program
// that loses a race changes nothing. Each side can open the files that the other has made. Comments call the description of how
// the agent's own programs use the board the contract.
//
// A [Store] is one open board, a [Dispatcher] makes passes over it, and a [Runner] starts the workers and knows how each one
// ended. Each attempt at a task is a [Run], which has a row of its own. No decision in the package reads the clock: the time is
// an argument.
//
// File dispatch.go has the steps of a pass in their order. File running.go finds out the state of the running tasks' workers.
// File leaving.go does so for workers whose attempt is over, and has the ledger, a file with all workers. claim.go claims and
// releases tasks, and spawn.go starts workers and keeps their logs. attempts.go decides what follows from the end of an attempt,
// and when the next pass is due. finish.go completes, blocks and promotes tasks. The other files have further changes by people
// and workers, and the access to SQLite.
//
// The package owns no goroutine that outlives a call. It starts processes only through the [Runner] and the git function that it
// is given.
package kanban
