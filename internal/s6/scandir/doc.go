// Package scandir is the scan directory of s6 in PID 1. It keeps service directories and the supervisor consistent.
//
// Each service of hinit has a service directory (slot) there, for the programs of s6 and for the agent. Like s6, hinit also
// supervises service directories that other programs make, see package foreign. A directory has a name and a definition, but never
// a state.
//
// # Promises
//
//   - The agent's user owns the scan directory and may replace any name in it at any moment. So the scanner resolves every name
//     relative to an open directory, and with the identity of this user.
//   - As with s6, a new directory becomes a service only when a client asks for a scan. The scanner finds removed directories by
//     itself.
//   - A directory of hinit appears either with its definition or not at all, and never replaces an existing directory. Files that
//     only other programs of s6 read may be added later.
//
// # Goroutines
//
// Each [Scanner] has one goroutine. It owns all state, and is the only one that waits for the file system of the scan directory.
// Readers get an immutable table. Short-lived goroutines remove the files of an earlier container.
package scandir
