// Package cli is the part of the command line that hinit itself has; package tools has the rest. A file holds a verb, or a few that belong together.
//
// A verb asks the running init through package client. Verbs that must work without an init read files: the configuration, the
// logs, the profiles. No code of PID 1 is in here. [Main] promises one line on standard error for each failure, and the exit
// codes of docs/reference/exit-codes.md. A name that an agent can choose reaches a terminal escaped.
//
// The package owns the goroutines of a verb that reads several logs; they end with the verb.
package cli
