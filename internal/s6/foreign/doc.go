// Package foreign supervises services that other people's directories define, by the rules of s6.
//
// A [Service] is such a directory, with its logger if it has one. Its files are read again before each start.
//
// # Promises
//
//   - A program is run as root only when its directory and its files belong to root and root alone can write them,
//     checked on the descriptor that it is then run from. Anything else runs as the agent's user.
//   - The pipe between a service and its logger stays open across restarts of either. The logger of a removed service reads
//     all input to the end.
//   - A broken directory is reported, shows in the status, and affects no other. It is tried again when it changes.
//
// The package starts no goroutine: a Service belongs to its scanner's, see package scandir.
package foreign
