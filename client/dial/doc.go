// Package dial finds the control socket of a running hinit and sends requests to it. A [Client] sends one HTTP request with a JSON
// body for each call. The types of requests and answers are in package client.
//
// The package uses the standard library only, and opens a connection for each call. A [Client] holds little more than the path of
// the socket: any goroutine may use it, and it needs no closing. No goroutine of the package outlives a call.
//
// Every error is a [*client.Error], unless the caller's context has ended.
package dial
