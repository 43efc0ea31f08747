// Package daemon is the server and the client of the service that owns the sandboxes of a volume.
//
// [Server] listens on a unix socket. Each connection carries one command line, and the kernel reports the user of the client. The
// server passes the command line to a [Handler], which must give each caller access only to its own containers. Streams, window
// sizes and cancellation are frames of package mux. When a connection ends, its command is ended, too.
//
// [Dial] and [Conn.Run] are the client. The server has no state that must survive a restart: it finds containers by their labels.
//
// A Server owns one goroutine for each connection, and two more while its command runs. A Conn owns the goroutines of one Run.
package daemon
