package client

import "errors"

// Kind classifies an error. Its value is the string in the API's answer.
type Kind string

// The kinds of error.
const (
	KindUnknown     Kind = "unknown"     // no such profile or service
	KindNotAllowed  Kind = "not-allowed" // the caller's user may not do this
	KindBadRequest  Kind = "bad-request" // the request itself is wrong
	KindStopping    Kind = "stopping"    // the container is shutting down
	KindTimeout     Kind = "timeout"     // the desired state was not reached in time; hinit still carries out the command
	KindFailed      Kind = "failed"      // hinit tried to carry out the request and failed
	KindPermanent   Kind = "permanent"   // the service failed permanently and will not reach the state by itself
	KindBusy        Kind = "busy"        // too many connections; hinit has not read the request
	KindReplaced    Kind = "replaced"    // hinit was re-executed during the request; an accepted command is still carried out
	KindInternal    Kind = "internal"    // a fault of hinit, or an invalid answer
	KindUnreachable Kind = "unreachable" // hinit did not answer; only the client produces this kind
)

// Errors to test for with errors.Is. Each error matches one or two kinds.
var (
	ErrUnreachable = errors.New("hinit is not reachable")        // matches KindUnreachable and KindBusy
	ErrNotAllowed  = errors.New("not allowed")                   // matches KindNotAllowed
	ErrUnknown     = errors.New("no such profile or service")    // matches KindUnknown
	ErrBadRequest  = errors.New("hinit refuses a wrong request") // matches KindBadRequest
	ErrReplaced    = errors.New("hinit was replaced meanwhile")  // matches KindReplaced
)

// Error describes a failed request, for people (Message) and for programs (Kind). Message holds only the reason. The method Error
// puts the failed action before it, as in `cannot start "coder": ...`.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`

	// The client sets the fields below; they are not on the wire.
	Doing string `json:"-"` // the action that failed
	Cause error  `json:"-"` // the operating system's error
	Cut   bool   `json:"-"` // the connection ended before the answer was complete
}

// ErrorReply is the body of an error answer.
type ErrorReply struct {
	Error Error `json:"error"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.Doing == "" {
		return e.Message
	}
	return "cannot " + e.Doing + ": " + e.Message
}

// Unwrap returns the system's error that made the socket unreachable, or nil.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether e has a kind that target matches. target is one of the variables in this package whose names begin with Err.
func (e *Error) Is(target error) bool {
	matched := map[Kind]error{
		KindUnreachable: ErrUnreachable, KindBusy: ErrUnreachable, KindNotAllowed: ErrNotAllowed, KindUnknown: ErrUnknown,
		KindBadRequest: ErrBadRequest, KindReplaced: ErrReplaced,
	}[e.Kind]
	return matched != nil && matched == target
}
