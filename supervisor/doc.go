// Package supervisor decides which processes run, and keeps it so.
//
// It has two halves. [Machine] is a pure function of its inputs: Step takes the time and an event and returns actions;
// it reads no clock, starts nothing and owns no goroutine. [Loop] is the one goroutine that owns everything which
// changes: it feeds the machine with exits, signals, requests and the passing of deadlines, and carries its actions out
// through the small interfaces declared here ([Spawner], [LogSink]). There is no lock in this package: readers get an
// immutable [Snapshot] through an atomic pointer and follow the [Ring] of events with a cursor, so no reader, however
// slow, can hold up the loop.
//
// The package promises: at most one live main process per service; a signal only to a process of the service it is meant
// for; no KILL before its deadline unless the operator asked twice; every service that is neither down, parked nor failed
// has a live process, a deadline or an unmet need; a container shutdown ends in bounded time.
package supervisor
