// Package mux is what a client of a sandbox and the program inside it say to each other: many commands over one connection.
//
// A connection carries frames: a kind, a channel and up to [MaxData] bytes. Each command has a channel of its own, which the
// client opens and the program inside ends. Each of a channel's streams has a window of [Window] bytes: who sends more than the
// other side has made room for breaks the protocol, so that a slow reader holds up its own command and nobody else's, and the
// memory that a peer can take is bounded. Neither side trusts the other: what breaks the protocol ends the connection.
//
// A [Client] owns one goroutine, which reads, until its connection ends.
package mux
