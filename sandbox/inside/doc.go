// Package inside is the program that runs in a sandbox's container and starts its commands.
//
// [Serve] listens on a unix socket and speaks the protocol of package mux with any number of clients. It is a subreaper: it finds
// every process of a command when it has to end the command's tree, even if the process has left its session. When a connection
// ends, its foreground commands end too. Background commands go on, and so do processes that a foreground command left when it
// ended by itself. [Attach] connects standard input and output with that socket, for clients that can use only the engine.
//
// One goroutine, the loop, starts, signals and reaps processes. Each connection owns one goroutine that reads. Each command owns
// one that serves it and one for each of its streams.
package inside
