// Package daemon is the service that owns the sandboxes of a volume, and the way to it.
//
// [Server] listens on a unix socket. Each connection is one command line; the kernel says whose. The server gives it to the handler that
// it was made with, on an engine that knows the caller's own containers only. Streams, window sizes and signals are frames of package mux.
// A connection that ends takes its command with it.
//
// [Dial] and [Conn.Run] are the other side. Nothing that has to survive is in the server: containers are found by their labels.
//
// A Server owns one goroutine for each connection and two while its command runs. A Conn owns the goroutines of one Run.
package daemon
