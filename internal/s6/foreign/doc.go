// Package foreign supervises services whose directories other programs made, by the rules of s6.
//
// A [Service] is such a directory, with its logger if it has one. The package reads the files again before each start.
//
// # Promises
//
//   - A program runs as root only if its directory and its files belong to root and only root can write them. The check uses the
//     descriptor from which the program then runs. All other programs run as the agent's user.
//   - The pipe between a service and its logger stays open across restarts of either. The logger of a removed service reads all input to
//     the end.
//   - A broken directory is reported, appears in the status, and affects no other directory. After a change it is tried again.
//
// The package starts no goroutine: a Service belongs to the goroutine of its scanner, see package scandir.
package foreign
