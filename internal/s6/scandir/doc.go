// Package scandir is the scan directory of s6 inside PID 1: service directories in step with the supervisor, in both
// directions.
//
// What hinit supervises by itself has a directory there, so that the tools of s6 and the agent find it; what somebody else
// puts there is supervised as s6 would. The supervisor stays the only truth: a directory is a name for a service, and its
// files are a definition, never a state.
//
// # Promises
//
//   - The directory belongs to the agent's user, who may replace any name in it at any moment. Every name is resolved
//     beneath an open directory and with that user's identity. Only what root alone can have written is read as root.
//   - A program is run as root only when its directory and its files belong to root and nobody else can write them,
//     judged by the descriptor that it is then run from. Anything else runs as the agent's user.
//   - A directory that is found is a service only after somebody asked for a scan, as with s6: half a directory is not
//     started because it was seen too early. A directory that is gone is noticed without.
//   - A broken directory is reported, shows in the status, and hurts no other. It is tried again when it changes.
//   - A directory of hinit's own appears complete or not at all, and takes nothing's place.
//
// # Goroutines
//
// One goroutine for each [Scanner]: it owns what changes, does one thing after the other, and waits for the file system of the scan
// directory. Readers get an immutable table. Short ones remove what an earlier container left, and remind the first one of a
// logger that does not end.
package scandir
