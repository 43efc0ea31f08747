package client

import "errors"

// Kind is the kind of an error, as on the wire.
type Kind string

// The kinds of error.
const (
	KindUnknown     Kind = "unknown"     // no such profile or service
	KindNotAllowed  Kind = "not-allowed" // the caller's user may not do this
	KindBadRequest  Kind = "bad-request" // the request itself is wrong
	KindStopping    Kind = "stopping"    // the container is shutting down
	KindTimeout     Kind = "timeout"     // the wanted state was not reached in time; the command stays in force
	KindFailed      Kind = "failed"      // it was tried and did not work
	KindPermanent   Kind = "permanent"   // it has failed for good: the service will not get there by itself
	KindBusy        Kind = "busy"        // too many connections; nothing of the request was looked at
	KindReplaced    Kind = "replaced"    // hinit became another image of itself meanwhile; what was taken in stays in force
	KindInternal    Kind = "internal"    // a fault of hinit, or an answer that is none
	KindUnreachable Kind = "unreachable" // hinit did not answer; only the client makes this
)

// Errors for errors.Is.
var (
	ErrUnreachable = errors.New("hinit is not reachable")        // KindUnreachable and KindBusy
	ErrNotAllowed  = errors.New("not allowed")                   // KindNotAllowed
	ErrUnknown     = errors.New("no such profile or service")    // KindUnknown
	ErrBadRequest  = errors.New("hinit refuses a wrong request") // KindBadRequest
	ErrReplaced    = errors.New("hinit was replaced meanwhile")  // KindReplaced
)

// Error is an error for people (Message) and programs (Kind). Message is the reason alone; Error puts the failed action before it,
// as in `cannot start "coder": ...`.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`

	doing string // what was tried, "" on the server's side
	cause error
	cut   bool // the connection ended before the answer did
}

// ErrorReply is the body of an answer with an error.
type ErrorReply struct {
	Error Error `json:"error"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.doing == "" {
		return e.Message
	}
	return "cannot " + e.doing + ": " + e.Message
}

// Unwrap returns the system's error behind an unreachable socket, or nil.
func (e *Error) Unwrap() error { return e.cause }

// Is compares e with the Err values of this package.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrUnreachable:
		return e.Kind == KindUnreachable || e.Kind == KindBusy
	case ErrNotAllowed:
		return e.Kind == KindNotAllowed
	case ErrUnknown:
		return e.Kind == KindUnknown
	case ErrBadRequest:
		return e.Kind == KindBadRequest
	case ErrReplaced:
		return e.Kind == KindReplaced
	}
	return false
}
