// Package probe runs the checks of hinit.yaml, applies their thresholds, and reports the results to the supervisor.
//
// [Health] is the state of the checks of a run, without clock and I/O. It decides when a check is due, and how many equal
// results change its verdict. It also decides which checks wait for a start-up check, and when hinit gives up on a run. A
// [Prober] runs the checks.
//
// Promises: no check blocks the supervisor's loop. A check ends at its timeout, whatever the other side does, and reads at
// most 64 KiB. Results of one run don't count for the next. A check connects only to this container and to IP addresses, and
// resolves no names.
//
// [DeafWatch] finds deaf gateways: they run, but no longer react. It needs no configured check. It owns one goroutine with
// one timer, and up to [maxParallelProbes] more goroutines while it examines silent gateways.
//
// A Prober owns one goroutine with one timer, and one for each running check, up to [maxRunningChecks]. Its own goroutine
// makes tcp checks of ports of this machine, because these do not wait. Without checks it owns no goroutine.
package probe
