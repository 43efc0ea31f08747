// Package kanban is the task board that agent profiles share, and the dispatcher that starts a worker for each ready task.
//
// The board is one SQLite file that other programs write at the same time, such as a Python dispatcher. So every change is one
// immediate transaction with the compare-and-swap conditions that the others use. Both sides can open each other's files. The loser
// of a race changes nothing.
//
// A [Store] is one open board, a [Dispatcher] makes passes over it, and a [Runner] starts the workers and knows how each one ended.
// No decision in the package reads the clock: the time is an argument.
//
// A pass has its order in dispatch.go. File running.go examines the running tasks and their workers. File leaving.go does so for
// workers whose attempt is over, and has the ledger with all workers. claim.go claims and releases tasks, and spawn.go starts
// workers and keeps their logs. attempts.go says what follows from the end of an attempt, and when the next pass is due. finish.go promotes tasks. The
// other files have the changes that people and workers make, and SQLite.
//
// The package owns no goroutine that outlives a call. It starts processes only through the [Runner] and the git function that it is
// given.
package kanban
