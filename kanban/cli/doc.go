// Package cli implements the command line of the task board, hinit-kanban. Each group of verbs has one file.
//
// Other programs, such as the agent's own command line, may use the board's file at the same time. Only dispatch, reclaim,
// reassign and serve start or stop workers. Readable output goes to standard output. Each error is one line on standard error.
//
// The package owns goroutines only while a verb such as serve runs.
package cli
