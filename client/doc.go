// Package client has the types of the control API: requests, answers and the kinds of errors. It also says where the control
// socket may be. The types are the wire format itself, so that the server and every client agree on it. Package dial sends the
// requests.
//
// To decide what to do about an error, test it with [errors.Is] for [ErrUnreachable], [ErrNotAllowed], [ErrUnknown] and
// [ErrBadRequest]. The package owns no goroutine.
package client
