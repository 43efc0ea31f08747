// Package daemon is the service that owns the sandboxes of a volume, and its client.
//
// [Server] listens on a unix socket. Each connection carries one command line, and the kernel reports its user. The server passes
// it to a handler, with an engine that knows only the caller's own containers. Streams, window sizes and signals are frames of
// package mux. When a connection ends, its command ends too.
//
// [Dial] and [Conn.Run] are the client. The server holds no state that must survive: it finds containers by their labels.
//
// A Server owns one goroutine for each connection and two while its command runs. A Conn owns the goroutines of one Run.
package daemon
