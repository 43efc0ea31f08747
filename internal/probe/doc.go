// Package probe runs the checks of hinit.yaml, applies their thresholds, and reports the results to the supervisor.
//
// [Health] decides when a check runs, and how many equal results in a row change its verdict. Health also decides which checks
// wait for a start-up check, and when hinit gives up on a run. Health is a pure function of results and times. A [Prober] runs
// the checks.
//
// Promises: no check blocks the supervisor's loop. A check ends at its timeout, whatever the other side does, and reads at most
// 64 KiB. The results of one run don't count for the next run. A check connects only to this container and to IP addresses, and
// resolves no names.
//
// [DeafWatch] finds deaf gateways, which run but no longer react. A DeafWatch needs no configured check. It owns one goroutine
// with one timer, and up to [maxProbes] goroutines while it probes silent gateways.
//
// With checks, a Prober owns one goroutine with one timer, and up to [maxRunningChecks] goroutines for running checks. It
// makes tcp checks of ports of this machine in its own goroutine, because they do not wait. Without checks it owns none.
package probe
