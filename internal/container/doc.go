// Package container is PID 1 of a container: the one place that knows all rooms and wires them.
//
// [Main] supervises until the container ends. It owns the supervisor's loop, which runs in the caller's goroutine, and a goroutine
// each for the boot, the reports, the work on the data volume, the watching of profiles and the control server. None of them holds
// up the loop. What waits for a disk takes a turn of internal/blocking.
package container
