// Package scandir is the scan directory of s6 in PID 1. It keeps the service directories and the services of the supervisor
// consistent.
//
// For each service of hinit, the scan directory has a service directory (slot), for the programs of s6 and for the agent. Like
// s6, hinit also supervises service directories of other programs, see package foreign. A directory contains a definition, but
// never a state.
//
// # Promises
//
//   - The agent's user owns the scan directory and may replace any name in it at any moment. So the scanner resolves every name
//     relative to an open directory, and with the identity of this user.
//   - As in s6, a new directory becomes a service only when a client asks for a scan. The scanner finds removed directories by
//     itself.
//   - A directory of hinit appears with its complete definition or not at all, and never replaces an existing directory. Files
//     that only other programs of s6 read may follow later.
//
// # Goroutines
//
// Each [Scanner] has one goroutine. It owns all state, and only this goroutine waits for the file system of the scan directory.
// Other goroutines read an immutable table. Short-lived goroutines remove files that an earlier container has left.
package scandir
