// Package lease holds a Kubernetes Lease for the hinit of a pod (the init), and tells the init until when it may serve its
// data volume.
//
// The messages to the init have the form of sd_notify(3). X_HINIT_LEASE=held MICROSECONDS gives the end of the lease on
// CLOCK_BOOTTIME. X_HINIT_LEASE=waits HOLDER means that the pod with the identity HOLDER has the lease. The end is counted
// from the time before the request that renewed the Lease. A margin is subtracted, so that the init has time to stop
// everything that it has started. The margin is a fifth of the lease's duration and at least a second, but at most a third
// for a short lease.
//
// The package releases a Lease only when it is told that no process of the init is alive. An init that is stopped (by SIGSTOP
// or a tracer) when the lease ends can't kill its processes, so this package kills them. While [Run] runs, the package owns
// the goroutines of client-go's leader election, and one more for this check.
package lease
