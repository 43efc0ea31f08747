// Package client has the types of the control API: requests, answers and the kinds of errors, and the places of the socket. The types are the
// wire format itself, so that the server and every client agree on it. Package dial sends the requests.
//
// Test an error by [errors.Is] with [ErrUnreachable], [ErrNotAllowed], [ErrUnknown] and [ErrBadRequest] to decide what to do. The package owns
// no goroutine.
package client
