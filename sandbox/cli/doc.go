// Package cli implements the command line hinit sandbox, with one function for each verb. It operates on a manager of sandboxes,
// either in the process of the command or, for a client, in the service.
//
// [Main] prints one line on standard error for each failure. It returns the exit codes of docs/reference/exit-codes.md. exec and
// shell return the exit code of their command.
//
// The package owns no goroutine that outlives a call.
package cli
