// Package client talks to a running hinit over its control socket: HTTP with JSON bodies on a Unix socket. The types here are the
// wire format itself, so that the server and every client agree on it.
//
// It uses the standard library only and opens one connection per call. A [Client] holds only the path of the socket. Any goroutine
// may use it, and it needs no closing. No goroutine of the package outlives a call.
//
// Every error is an [*Error], except when the caller's context ended. Test it by [errors.Is] with [ErrUnreachable], [ErrNotAllowed],
// [ErrUnknown] and [ErrBadRequest] to decide what to do.
package client
