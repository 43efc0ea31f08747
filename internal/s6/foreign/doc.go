// Package foreign supervises foreign services: services whose service directories were made by other programs. It follows the
// rules of s6.
//
// A [Service] is such a directory, with its logger if it has one. The package reads the files of the directory again before
// each start.
//
// # Promises
//
//   - A program runs as root only if its directory and all files in it belong to root, and only root can write to them. It then
//     runs from the checked directory, even after a renaming. All other programs run as the agent's user.
//   - The pipe between a service and its logger stays open when either of them restarts. When a service is removed, its logger
//     reads all input to the end.
//   - A faulty directory is reported, appears in the status and affects no other directory. After the directory changes, hinit
//     tries it again.
//
// The package starts no goroutine. Only the goroutine of a Service's scanner may use the Service, see package scandir.
package foreign
