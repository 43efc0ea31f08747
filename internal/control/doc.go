// Package control serves the control API of hinit: HTTP with JSON on a Unix socket, for the command line and for curl. Package
// client has the types on the wire. The routes are one table in routes.go. An [Endpoint] is the socket of PID 1, with the FIFO
// for orders beside it: it keeps both over a re-execution.
//
// No client can hold up the supervisor or fill memory. Answers come from immutable snapshots, and waiting happens in the
// request's goroutine. Connections are limited per class of caller, and every step that a slow client delays has a deadline.
// Access is decided by the credentials that the kernel reports for the connection, never by the mode of the socket file. A
// command succeeds only when its effect is there.
//
// A [Server] owns the goroutine that called Serve, one per connection and net/http's own; Close ends all.
package control
