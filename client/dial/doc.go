// Package dial finds the control socket of a running hinit and sends requests to it. A [Client] sends one HTTP request with a
// JSON body for each call. The types of requests and answers are in package client.
//
// The package uses the standard library only and opens one connection per call. A [Client] holds only the path of the socket. Any
// goroutine may use a Client, and a Client needs no closing. No goroutine of the package outlives a call.
//
// Every error is a [*client.Error], except when the caller's context ended.
package dial
