// Package control serves the control API of hinit: HTTP with JSON on a Unix socket, for the command line and for curl. The types of
// the messages are in package client, and routes.go has the table of all routes. An [Endpoint] is the control socket of PID 1 with
// its FIFO, into which a shell can write orders. An Endpoint keeps both open over a re-execution.
//
// Clients can't block the supervisor or fill its memory. Answers come from immutable snapshots, and each request waits in its own
// goroutine. The number of connections of each class of clients is limited, and every step that a slow client can delay has a
// deadline. Access depends on the credentials that the kernel reports for a connection, and not on the mode of the socket file. A
// command is answered with success only when it has taken effect.
//
// A [Server] owns the goroutine that called Serve, one for each connection, and the goroutines of net/http. Close ends all of them.
package control
