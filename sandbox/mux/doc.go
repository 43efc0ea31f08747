// Package mux is the protocol of sandboxes: it runs many commands over one connection. The client side is a process that runs
// commands, and the serving side is the helper in a container. The same protocol connects a command line (client) with the
// service of package daemon.
//
// A connection carries frames. A frame has a kind, a channel number and up to [MaxData] bytes. Each command has its own
// [Channel], which the client opens with a request and the serving side ends. A channel has three streams. The reader of a
// [Stream] confirms each frame that it has consumed, and at most four frames may be unconfirmed. So a slow reader delays only
// its own command, and the memory that the other side can use is limited. Neither side trusts the other: a violation of the
// protocol ends the connection.
//
// A [Client] owns one goroutine, which reads from the connection until it ends.
package mux
