// Package container is PID 1 of a container. It creates the other packages' objects and connects them; no other package knows all
// of them.
//
// [Main] supervises until the container ends. It runs the supervisor's event loop. The loop, the boot, the event reporter, the
// work on the data volume, the profile watcher and the control server each have their own goroutine. None of them blocks the
// loop, and none runs on the main thread. A call that may wait for a disk first takes a turn from internal/blocking, which limits
// how many such calls wait at the same time.
package container
