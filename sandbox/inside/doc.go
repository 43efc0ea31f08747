// Package inside is the program that runs in a sandbox's container and starts its commands.
//
// [Serve] listens on a unix socket and speaks package mux with any number of clients. It is a subreaper: every process of a command
// is found again when the command's tree is to end, also one that has left its session. A connection that ends takes its
// foreground commands with it; what these left behind when they ended by themselves, and background commands, go on.
// [Attach] joins standard input and output with that socket, for clients that reach the container only through its engine.
//
// One goroutine, the loop, starts, signals and reaps. Each connection owns one goroutine that reads, and each command one that
// serves it and one for each of its streams.
package inside
