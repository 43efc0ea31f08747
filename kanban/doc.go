// Package kanban implements the task board that agent profiles share, and the dispatcher that starts a worker for each ready
// task.
//
// The board is one SQLite file. Other programs, such as the agent's Python dispatcher, write to it at the same time. So every
// change is one immediate transaction that first checks the state it depends on. All programs check the same conditions. A
// program that finds the state changed by another one changes nothing. Each program can open the files that the others have
// made.
//
// A [Store] is one open board. A [Dispatcher] makes passes over it, and a [Runner] starts the workers and reports how each
// one ended. Each attempt at a task is a [Run], which is a row of its own. No decision in the package reads the clock: the
// time is an argument.
//
// The file dispatch.go has the steps of a pass in their order. The file running.go determines the state of the workers of
// running tasks. The file leaving.go does the same for workers whose attempt is over; it also has the ledger, a file that
// lists all workers. The file claim.go claims and releases tasks, and spawn.go starts workers and keeps their logs. The file
// attempts.go decides what follows from the end of an attempt, and when the next pass is due. The file finish.go completes,
// blocks and promotes tasks. The other files have the changes that people and workers make, and the access to SQLite.
//
// No goroutine of the package outlives the call that started it. The package starts processes only through the [Runner] and
// the [Git] function that the caller supplies.
package kanban
