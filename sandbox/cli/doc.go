// Package cli implements the command line of `hinit sandbox`, with one function for each verb. It works on a manager of
// sandboxes, in the process of the command or in the service.
//
// [Main] prints one line on standard error for each failure, and returns the exit codes of docs/reference/exit-codes.md. exec and
// shell return the exit code of their command.
//
// No goroutine of the package outlives the call that started it.
package cli
