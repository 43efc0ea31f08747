// Package kanban is the task board that agent profiles share, and the dispatcher that turns its ready rows into workers.
//
// The board is one SQLite file that other programs write at the same time, a Python dispatcher among them. So the package
// promises: every change is one immediate transaction with the compare-and-swap conditions that the others use; a file
// written here opens there and the other way round; whoever loses a race changes nothing.
//
// A [Store] is one open board, a [Dispatcher] makes passes over it, and a [Runner] starts the workers and knows how each one
// ended. Nothing in here reads the clock to decide: the time is an argument.
//
// The package owns no goroutine that outlives a call. It starts processes only through the [Runner] and the git hook it is given.
package kanban
