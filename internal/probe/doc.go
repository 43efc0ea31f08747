// Package probe asks services whether they work: the checks of hinit.yaml, their thresholds, and what follows from them.
//
// [Health] decides, as a pure function of answers and times. It says when a check is asked, how many answers in a row count,
// which checks wait for a start-up check, and when a service is given up. A [Prober] does the asking and tells the supervisor.
//
// It promises: no check waits in the supervisor's loop. A look ends at its timeout whatever the other side does, and reads at
// most 64 KiB. A check of a run says nothing about the next run. It asks only this container and IP addresses, and resolves no
// names.
//
// [DeafWatch] find gateways that are up and deaf, without being asked for. They own one goroutine with one timer, and up to [mostAsked] while they ask those that have
// gone silent.
//
// A Prober owns one goroutine with one timer once there is a check, and up to [mostLooks] for looks under way; without a check it
// owns none.
package probe
