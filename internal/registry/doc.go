// Package registry registers services with the supervisor. It is the only package that knows all parts of a service. These are
// the supervisor's unit, the log, the checks, the events that the service waits for, and its s6 service directory (slot).
//
// The boot, the gateways, the scan directory, a reload and the commands of clients use this package. A [Follower] maintains
// the slots and their down files, so that package registry need not know s6.
//
// A service starts only after the events that it waits for, no matter which caller registers it. A gateway runs with the
// variables that its slot exports. The package owns no goroutine.
package registry
