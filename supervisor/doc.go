// Package supervisor decides which processes run, and keeps it so.
//
// It has two halves. [Machine] is a pure function of its inputs: Step takes the time and an event and returns actions;
// it reads no clock, starts nothing and owns no goroutine. [Loop] is the one goroutine that owns everything which
// changes: it feeds the machine with exits, signals, requests and the passing of deadlines, and carries its actions out
// through the small interfaces declared here ([Spawner], [LogSink]). There is no lock in this package: readers get an
// immutable [Snapshot] through an atomic pointer and follow the [Ring] of events with a cursor, so no reader, however
// slow, can hold up the loop.
//
// A service may have a finish command, which runs after each run of its main process, as a run of its own. What else an s6
// service directory asks for is in [Policy] and [Unit], and off by default.
//
// Besides the loop the package owns a short-lived goroutine for each run that has a descriptor to say on that it is ready.
//
// The package promises: at most one live process per service, be it the main process or the finish command; a signal only to a process of the service it is meant
// for; no KILL before its deadline unless an operator asks for it; every service that is neither down, parked nor failed
// has a live process, a deadline or an unmet need; a container shutdown ends in bounded time.
package supervisor
