// Package container is PID 1 of a container: the one place that knows all rooms and wires them.
//
// [Main] supervises until the container ends. The supervisor's loop runs in the goroutine that calls it; the boot, the reporting of events,
// the work that follows them on the data volume, the watching of profiles and the control server have a goroutine each, so that none of
// them can hold up the loop. What they wait for on a disk takes a turn of internal/blocking.
package container
