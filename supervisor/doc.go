// Package supervisor decides which processes run, and keeps it so.
//
// It has two halves. [Machine] is a pure function of its inputs: Step takes the time and an event and returns actions. It reads no
// clock, starts nothing and owns no goroutine. [Loop] is the one goroutine that owns everything that changes. It feeds the machine
// with exits, signals, requests and deadlines, and carries its actions out through [Spawner] and [LogSink]. There is no lock:
// readers get an immutable [Snapshot] through an atomic pointer and follow the [Ring] of events with a cursor, so no reader holds
// up the loop.
//
// The machine: machine.go has the table of transitions and Step, machine_events.go its events and actions, machine_service.go what is
// known of a service and its run, machine_exits.go what follows an exit, machine_deadlines.go what time does, machine_needs.go what
// services need of each other, machine_turns.go how many start at once, machine_checks.go and machine_notify.go what checks and services say of themselves,
// machine_commands.go what people ask for, machine_shutdown.go the end of the container.
//
// The loop: loop.go takes turns, unit.go is a service as it runs it, processes.go starts and reaps, reap_flood.go reaps orphans by the
// thousand, ready_pipe.go hears that a service is ready, snapshot.go and ring.go publish, handover.go hands over, undo.go takes back a
// step that panicked. states.go has the words of both.
//
// Besides the loop the package owns a short-lived goroutine for each run that announces that it is ready.
//
// The package promises: at most one live process per service, its finish command included; a signal only to a process of the
// service it is meant for; no KILL before its deadline unless an operator asks for it; every service that is neither down, parked
// nor failed has a live process, a deadline, an unmet need or waits for its turn; a container shutdown ends in bounded time.
package supervisor
