// Package dial finds the control socket of a running hinit and sends requests to it. Each call of a [Client] sends one HTTP
// request with a JSON body. Package client has the types of requests and answers.
//
// The package uses only the standard library, and opens a connection for each call. A [Client] stores little more than the path
// of the socket, so any goroutine may use it, and it needs no closing. No goroutine of the package outlives a call.
//
// Every error is a [*client.Error], unless the caller's context has ended.
package dial
