package client

import "errors"

// Kind is the kind of an error, as a program needs it. It is the string in the answer of the API.
type Kind string

// The kinds of error.
const (
	KindUnknown     Kind = "unknown"     // the profile or service does not exist
	KindNotAllowed  Kind = "not-allowed" // the caller's user may not do this
	KindBadRequest  Kind = "bad-request" // the request itself is wrong
	KindStopping    Kind = "stopping"    // hinit or the container is ending
	KindTimeout     Kind = "timeout"     // the desired state was not reached in time; hinit still carries out the command
	KindFailed      Kind = "failed"      // the request was carried out, without success
	KindPermanent   Kind = "permanent"   // the service can't reach the desired state without another command
	KindBusy        Kind = "busy"        // hinit has too many connections, and has not read the request
	KindReplaced    Kind = "replaced"    // hinit was re-executed in the meantime; an accepted command continues
	KindInternal    Kind = "internal"    // a fault of hinit, or an invalid answer
	KindUnreachable Kind = "unreachable" // hinit gave no answer; only the client sets this kind
)

// Targets for errors.Is. Each matches an [Error] of the kinds in its comment.
var (
	ErrUnreachable = errors.New("hinit is not reachable")        // KindUnreachable and KindBusy
	ErrNotAllowed  = errors.New("not allowed")                   // KindNotAllowed
	ErrUnknown     = errors.New("no such profile or service")    // KindUnknown
	ErrBadRequest  = errors.New("hinit refuses a wrong request") // KindBadRequest
	ErrReplaced    = errors.New("hinit was replaced meanwhile")  // KindReplaced
)

// Error is a failed request. Message is the reason, for people, and Kind is for programs. The method Error also names the failed
// action: `cannot start "coder": ...`.
type Error struct {
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`

	// Only the client sets the following fields; they are not sent.
	Action         string `json:"-"` // the action that has failed, which the message names after "cannot"
	Cause          error  `json:"-"` // error of the operating system, or nil
	ConnectionLost bool   `json:"-"` // the connection ended before the answer was complete
}

// ErrorReply is the body of an error answer.
type ErrorReply struct {
	Error Error `json:"error"`
}

// Error implements error.
func (e *Error) Error() string {
	if e.Action == "" {
		return e.Message
	}
	return "cannot " + e.Action + ": " + e.Message
}

// Unwrap returns the error of the operating system, or nil.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether e is of a kind that target stands for; target is one of the Err variables.
func (e *Error) Is(target error) bool {
	matched := map[Kind]error{
		KindUnreachable: ErrUnreachable, KindBusy: ErrUnreachable, KindNotAllowed: ErrNotAllowed, KindUnknown: ErrUnknown,
		KindBadRequest: ErrBadRequest, KindReplaced: ErrReplaced,
	}[e.Kind]
	return matched != nil && matched == target
}
