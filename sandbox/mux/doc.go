// Package mux is what all parts of sandboxes say to each other: many commands over one connection. Its sides are a client of a sandbox and
// the program inside it, or a command line and the service (package daemon).
//
// A connection carries frames: a kind, a channel and up to [MaxData] bytes. Each command has a channel of its own. The client
// opens it with a request, and the other side, which has it as a [Served], ends it. Each of a channel's streams has a window of
// [Window] bytes, and a peer that sends more breaks the protocol. So a slow reader delays only its own command, and the memory
// that a peer can take is bounded. Neither side trusts the other: a violation of the protocol ends the connection.
//
// A [Client] owns one goroutine, which reads, until its connection ends.
package mux
