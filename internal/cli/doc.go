// Package cli is the part of the command line that the program hinit contains; package tools has the rest. Each file has one verb,
// or a few that belong together.
//
// A verb asks the running init through package client. Verbs that must work without an init read files: the configuration, the
// logs, the profiles. The package has no code of PID 1. [Main] prints one line on standard error for each failure. Its exit codes are
// in docs/reference/exit-codes.md. A name that an agent can choose is escaped on a terminal.
//
// The package owns the goroutines of a verb that reads several logs; they end with the verb.
package cli
