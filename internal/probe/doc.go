// Package probe runs the checks of hinit.yaml, applies their thresholds, and reports the results to the supervisor.
//
// [Health] decides, as a pure function of results and times. It says when a check runs, how many results in a row count, which
// checks wait for a start-up check, and when a service is given up. A [Prober] runs the checks.
//
// It promises: no check waits in the supervisor's loop. A check ends at its timeout, whatever the other side does, and reads at
// most 64 KiB. The results of one run don't count for the next run. A check connects only to this container and to IP addresses,
// and resolves no names.
//
// [DeafWatch] finds deaf gateways without any configured check. It owns one goroutine with one timer, and up to [mostAsked] while
// it probes silent gateways.
//
// Once there is a check, a Prober owns one goroutine with one timer, and up to [maxRunningChecks] for running checks. Without a check it
// owns none.
package probe
