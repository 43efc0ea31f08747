package client

import "time"

// Look describes the appearance of the status table. The zero value suits a file.
type Look struct {
	Width   int  // columns of the terminal; 0 for no limit
	Colour  bool // print the states in colours
	Verbose bool // show the duration and the steps of the boot
}

// Wait says how long a command waits for its effect. With the zero value it does not wait.
type Wait struct {
	Wait    bool
	Timeout time.Duration // whole milliseconds, at most an hour; 0 is 30 seconds, and 40 for Stop and Restart
	Force   bool          // start a profile's own gateway although another gateway serves the profile
}

// Verb is an order to a service. It is the last part of the request's path.
type Verb string

// EventOptions choose events. The zero value is the whole history.
type EventOptions struct {
	Since  uint64 // only events after this Seq
	Last   int    // largest number of past events; 0 is no limit, a negative number is none
	Follow bool   // go on with new events
}

// The orders that a client can give to a service.
const (
	VerbStart   Verb = "start"
	VerbStop    Verb = "stop"
	VerbRestart Verb = "restart"
	VerbRunOnce Verb = "run-once"
)
