// Package scandir is the scan directory of s6 inside PID 1. It keeps service directories and the supervisor consistent.
//
// Services of hinit get a directory there for the tools of s6 and the agent. hinit supervises directories of other programs like
// s6, see package foreign. A directory is a name and a definition, never a state.
//
// # Promises
//
//   - The agent's user owns the directory and may replace any name at any moment. The scanner resolves every name beneath an open
//     directory and with that user's identity.
//   - As with s6, a new directory becomes a service only when a client asks for a scan. The scanner finds a removed directory
//     without a scan.
//   - A directory of hinit appears with its definition or not at all, and replaces nothing. Files that only other tools of s6
//     read may follow later.
//
// # Goroutines
//
// Each [Scanner] has one goroutine, which owns all state and waits for the file system of the scan directory. Readers get an
// immutable table. Short-lived goroutines remove files of an earlier container.
package scandir
