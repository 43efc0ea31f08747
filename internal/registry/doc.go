// Package registry makes services known to the supervisor. It is the only room that knows all parts of a service: the unit, the
// log, the checks, what the service waits for, and its slot.
//
// The boot, the gateways, the scan directory, a reload and the runs call it. A [Follower] is informed of slots and of down files;
// package registry does not know what s6 is.
//
// It promises that a service starts only after what it waits for, whoever registers the service. It also promises that a gateway
// has the variables that its slot exports. It owns no goroutine.
package registry
