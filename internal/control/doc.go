// Package control serves the control API of hinit: HTTP with JSON on a Unix socket, for the command line and for curl. Package
// client has the types of the messages. One table in routes.go has all routes. An [Endpoint] is the control socket of PID 1,
// together with a FIFO into which a shell can write orders. It keeps both open over a re-execution.
//
// No client can block the supervisor or fill its memory. Answers come from immutable snapshots, and each wait happens in the
// goroutine of its request. Connections are limited for each class of callers, and every step that a slow client can delay has a
// deadline. The credentials that the kernel reports for a connection decide about access; the mode of the socket file does not.
// The answer that a command has succeeded is sent only after its effect.
//
// A [Server] owns the goroutine that called Serve, one per connection, and the goroutines of net/http; Close ends all of them.
package control
