// Package cli has the parts that all commands of hinit share, and the commands that ask for services or give orders to them: status, start,
// stop, restart, healthcheck. Package tools has the other commands and the table of all commands. Each file has one verb, or a few that
// belong together.
//
// A verb asks the running init through package dial. Verbs that must work without an init read files: the configuration, the
// logs, the profiles. The package has no code of PID 1. [Terminal.Run] prints one line on standard error for each failure. Its exit codes
// are in docs/reference/exit-codes.md. A name that an agent can choose is escaped on a terminal.
//
// The package owns the goroutines of a verb that reads several logs; they end with the verb.
package cli
