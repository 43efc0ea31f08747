// Package mux is the protocol between the parts of a sandbox. It runs many commands over one connection. The two sides are a
// client and the helper in the container, or a command line and the service (package daemon).
//
// A connection carries frames. A frame has a kind, a channel number and up to [MaxData] bytes. Each command has its own
// [Channel], which the client opens with a request and the other side ends. A channel has three streams. The reader of a [Stream]
// confirms each frame when it has consumed it, and at most four frames may be unconfirmed. So a slow reader delays only its own
// command, and the memory that a peer can use is limited. Neither side trusts the other: a violation of the protocol ends the
// connection.
//
// A [Client] owns one goroutine, which reads from the connection until it ends.
package mux
