// Package client talks to a running hinit over its control socket: HTTP with JSON bodies on a Unix socket. The types here
// are the wire format itself, so that the server and every client agree on it.
//
// It uses the standard library only and opens one connection per call. A [Client] holds no state but the path of the
// socket, may be used from any goroutine, needs no closing, and the package owns no goroutine that outlives a call.
//
// Every error that is not that of the caller's context is an [*Error]; [errors.Is] with [ErrUnreachable],
// [ErrNotAllowed], [ErrUnknown] and [ErrBadRequest] tells what to do about it.
package client
