// Package control serves the control API of hinit: HTTP with JSON on a Unix socket, for the command line and for curl. Package
// client has the types of the messages, and routes.go the table of all routes. An [Endpoint] is the control socket of PID 1,
// together with a FIFO into which a shell can write orders. Both stay open during a re-execution.
//
// Clients can't block the supervisor or fill its memory. Answers come from immutable snapshots, and each request waits in its own
// goroutine. Each class of clients has a limited number of connections, and every step that a slow client can delay has a
// deadline. Access depends on the credentials of the client, which the kernel reports, and not on the mode of the socket file. A
// command succeeds only when it has taken effect.
//
// A [Server] owns the goroutine that called Serve, one goroutine for each connection, and the goroutines of net/http. Close ends
// all of them.
package control
