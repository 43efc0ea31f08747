// Package cli implements the service commands (status, start, stop, restart, healthcheck) and the code that all hinit commands
// share. Package tools implements the other commands and defines the table of all commands. Each file has one verb, or a few
// related verbs.
//
// A verb is a command of the command line. It asks the running init through package dial. Verbs that must work without an init
// read files: the configuration, the logs, the profiles. Nothing in this package runs in PID 1. [Terminal.Run] prints one line on
// standard error for each failure. Its exit codes are in docs/reference/exit-codes.md. Names that an agent can choose are escaped
// when they are printed on a terminal.
//
// The goroutines of the package belong to a verb and end with it.
package cli
