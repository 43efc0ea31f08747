// Package foreign supervises services whose service directories were made by other programs, by the rules of s6.
//
// A [Service] is such a directory, with its logger if it has one. The files of the directory are read again before each start.
//
// # Promises
//
//   - A program runs as root only if its directory and all files in it belong to root, and only root can write to them. It then
//     runs from the descriptor that was checked. All other programs run as the agent's user.
//   - The pipe between a service and its logger stays open when either of them restarts. When a service is removed, its logger
//     reads all input to the end.
//   - A faulty directory is reported and appears in the status. It affects no other directory. After the directory changes, hinit
//     tries it again.
//
// The package starts no goroutine. Only the goroutine of a Service's scanner uses it, see package scandir.
package foreign
