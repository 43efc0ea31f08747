// Package lease holds a Lease of a cluster for the init of a pod, and tells the init until when it may serve.
//
// The init reads datagrams of sd_notify(3): X_HINIT_LEASE=held MICROSECONDS, the end of the lease on CLOCK_BOOTTIME, or X_HINIT_LEASE=waits
// HOLDER. The end is counted from before the request that renewed the Lease. A fifth of the lease's duration is left out of it, and at least a
// second, or a third of a shorter lease. In this time the init ends what it has started.
//
// The package promises that it gives a Lease away only when it is told that nothing of the init is alive. An init that is stopped when the
// lease ends can't end its processes; then the package kills them. It owns the goroutines of client-go's leader election, and one more, while
// [Run] runs.
package lease
