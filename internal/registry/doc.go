// Package registry registers services with the supervisor. It is the only package that knows all parts of a service: the
// supervisor's unit, the log, the checks, the needs, and the s6 service directory (slot).
//
// The boot, the gateways, the scan directory of s6, a reload and clients register services with this package. A service starts
// only after its needs are met, and a gateway gets the variables that its slot exports. A [SlotMaker] makes the slots and their
// down files, so that this package need not know s6. The package owns no goroutine.
package registry
