// Package client defines the types of the control API: requests, answers and error kinds. [SocketPaths] lists the places of the
// control socket. The types are the wire format itself, so that the server and every client agree on it. Package dial sends the
// requests.
//
// To decide what to do about an error, test it with [errors.Is] for [ErrUnreachable], [ErrNotAllowed], [ErrUnknown] and
// [ErrBadRequest]. The package owns no goroutine.
package client
