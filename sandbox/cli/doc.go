// Package cli is the command line of sandboxes, hinit sandbox: one function for each verb. It works on a given manager of
// sandboxes, in the process of the command, or in the service for one of its callers.
//
// [Main] prints one line on standard error for each failure, and returns the exit codes of docs/reference/exit-codes.md. exec and
// shell return the exit code of their command.
//
// The package owns no goroutine that outlives a call.
package cli
