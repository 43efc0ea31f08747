// Package cli is the part of the command line that hinit itself has; package tools has the rest. A file holds a verb, or a few that belong together.
//
// A verb asks the running init through package client, and reads files where it has to work without one: the configuration, the logs, the
// profiles. Nothing of PID 1 is in here. [Main] promises one line on standard error for whatever could not be done, and the exit codes of
// docs/reference/exit-codes.md. A name that an agent can choose reaches a terminal escaped.
//
// The package owns the goroutines of a verb that reads several logs; they end with the verb.
package cli
