// Package cli is the command line of sandboxes, hinit sandbox: one function a verb, on a manager of sandboxes that it is given. It runs in
// the process of the command, or in the service for a caller of it.
//
// [Main] promises one line on standard error for whatever could not be done, and the exit codes of docs/reference/exit-codes.md; exec and
// shell return their command's.
//
// The package owns no goroutine beyond the call.
package cli
