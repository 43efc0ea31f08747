// Package cli is the command line of the task board, hinit-kanban: one file for each group of verbs.
//
// The verbs work on the board's file beside every other program that does, the agent's own command line among them. Only dispatch,
// reclaim, reassign and serve start or end workers. Human output goes to standard output, errors to standard error in one line.
//
// The package owns the goroutines of a verb that serves, for as long as that runs.
package cli
