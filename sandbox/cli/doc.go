// Package cli implements the command line hinit sandbox: one function for each verb. It works on a manager of sandboxes. It runs
// in the process of the command or, on behalf of a caller, in the service.
//
// [Main] prints one line on standard error for each failure. It returns the exit codes of docs/reference/exit-codes.md. exec and
// shell return the exit code of their command.
//
// The package owns no goroutine that outlives a call.
package cli
