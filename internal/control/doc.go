// Package control serves the control API of hinit: HTTP with JSON on a Unix socket, for the command line and for anyone
// with curl. The types on the wire are those of package client; the routes are one table in routes.go.
//
// It promises that no client can hold up the supervisor or fill memory: answers come from immutable snapshots, waiting
// happens in the goroutine of the request, connections are bounded per class of caller, and everything a client may be
// slow at has a deadline. Who may do what is decided by the credentials that the kernel reports for the connection, never
// by the mode of the socket file. A command is answered with the truth: with success only when what was asked for has
// come about.
//
// A [Server] owns the goroutine that called Serve, one per connection and what net/http needs for it; Close ends all.
package control
