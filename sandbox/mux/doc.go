// Package mux is the protocol of all parts of sandboxes: many commands over one connection. The two sides are a client of a
// sandbox and the helper in it, or a command line and the service (package daemon).
//
// A connection carries frames: a kind, a channel and up to [MaxData] bytes. Each command has its own [Channel]. The client opens
// it with a request, and the other side ends it. A channel has three streams. The reader of a [Stream] confirms each frame when
// it has consumed it. A peer that sends more than four frames without a confirmation breaks the protocol. So a slow reader delays
// only its own command, and the memory that a peer can use is limited. Neither side trusts the other: a violation of the protocol
// ends the connection.
//
// A [Client] owns one goroutine, which reads, until its connection ends.
package mux
