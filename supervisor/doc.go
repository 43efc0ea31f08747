// Package supervisor starts, restarts and stops the processes of services.
//
// The package has two halves. [Machine] is a pure state machine: Step takes the time and an event and returns actions. The
// machine reads no clock, starts nothing and owns no goroutine. [Loop] is the one goroutine that owns all state. The loop feeds
// the machine with exits, signals, requests and deadlines. It carries out the machine's actions through [Spawner] and [LogSink].
// There is no lock. Readers get an immutable [Snapshot] through an atomic pointer and follow the [Ring] of events with a cursor,
// so no reader delays the loop.
//
// The machine:
//   - machine.go: the table of transitions, and Step
//   - machine_events.go: its events and actions
//   - machine_service.go: the state of a service and its run
//   - machine_exits.go and machine_deadlines.go: exits, and deadlines
//   - machine_needs.go and machine_start_queue.go: needs and tasks, and limits on simultaneous starts
//   - machine_checks.go: the results of checks, and messages of sd_notify
//   - machine_hold.go: services that must not run while memory or disk space is short
//   - machine_commands.go and machine_shutdown.go: commands of operators, and the shutdown of the container
//
// The loop:
//   - loop.go: waits for events and steps the machine
//   - unit.go: the definition of a service
//   - processes.go and reap_flood.go: starts and reaps processes, reads readiness from a descriptor, and copes with floods of orphans
//   - snapshot.go and ring.go: publish the state and the history
//   - handover.go and undo.go: hand over state at re-execution, and undo a step that panicked
//   - states.go: the types that machine and loop share
//   - await.go: waits until a task has ended
//
// Apart from the loop, the package owns a short-lived goroutine for each run that reports readiness on a pipe.
//
// The package promises:
//   - A service has at most one live main process. A running finish command counts as the main process.
//   - A signal reaches only processes of the intended service. SIGKILL is sent only after its deadline, unless an operator asks
//     for it.
//   - A service that is neither down, parked nor failed has a live process or a deadline, or waits for a need or its turn
//     to start.
//   - A container shutdown ends in bounded time.
package supervisor
