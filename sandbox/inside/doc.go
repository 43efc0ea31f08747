// Package inside is the helper: the program that runs in a sandbox's container and starts its commands.
//
// [Serve] listens on a unix socket and serves any number of clients by the protocol of package mux. The helper is a child
// subreaper, so that it can end the whole process tree of a command, including processes that have left their session. When a
// connection ends, its foreground commands are killed. Background commands continue, and so do processes that a foreground
// command left behind when it ended by itself. [Attach] connects standard input and output with that socket, for clients that
// can reach the container only through the engine.
//
// One goroutine, the loop, starts, signals and reaps processes. Each connection owns one goroutine that reads. Each command
// owns one goroutine that serves it, and one for each of its streams.
package inside
