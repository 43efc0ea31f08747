// Package foreign supervises services whose directories hinit did not make, by the rules of s6.
//
// A [Service] is such a directory, with its logger if it has one. Its files are read again before each start.
//
// # Promises
//
//   - A program is run as root only if its directory and its files belong to root and only root can write them. That is checked on the
//     descriptor from which the program is then run. Anything else runs as the agent's user.
//   - The pipe between a service and its logger stays open across restarts of either. The logger of a removed service reads all input to
//     the end.
//   - A broken directory is reported, appears in the status, and affects no other. It is tried again when it changes.
//
// The package starts no goroutine: a Service belongs to its scanner's, see package scandir.
package foreign
