// Package cli is the command line of the task board, hinit-kanban: one file for each group of verbs.
//
// The verbs work on the board's file at the same time as other programs, such as the agent's own command line. Only dispatch,
// reclaim, reassign and serve start or end workers. Human output goes to standard output, errors to standard error in one line.
//
// The package owns goroutines only while a verb such as serve runs.
package cli
