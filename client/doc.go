// Package client defines the types of the control API: requests, answers and kinds of errors. They are the wire format itself, so
// that the server and all clients use the same types. [SocketPaths] returns the possible paths of the control socket. Package
// dial sends the requests.
//
// To find out what an error means, compare it by [errors.Is] with [ErrUnreachable], [ErrNotAllowed], [ErrUnknown] and
// [ErrBadRequest]. The package owns no goroutine.
package client
