// Package container is PID 1 of a container: the one place that knows all rooms and connects them.
//
// [Main] supervises until the container ends. It owns the supervisor's loop. The loop, the boot, the reports, the work on the data volume,
// the watching of profiles and the control server have a goroutine each. None of them holds up the loop, and none has the main thread.
// A call that waits for a disk takes a turn of internal/blocking.
package container
