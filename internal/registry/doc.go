// Package registry makes services known to the supervisor. It is the only room that knows what belongs to that: the unit, the log, the
// checks, what the service waits for, and its slot.
//
// The boot, the gateways, the scan directory, a reload and the runs call down to it. A [Follower] is told of slots and of down files;
// package registry does not know what s6 is.
//
// It promises that a service starts only after what it waits for, whoever registers the service, and that a gateway has the variables
// that its slot exports. It owns no goroutine.
package registry
