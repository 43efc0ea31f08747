// Package container is PID 1 of a container. It makes the objects of the other packages and connects them. No other package
// knows all of them.
//
// [Main] supervises until the container ends. The supervisor's event loop, the boot, the event reporter, the work on the data
// volume, the watcher of profiles and the control server each have their own goroutine. None of them blocks the loop, and none
// runs on the main thread. A call that may wait for a disk first takes a turn of internal/blocking, which limits how many such
// calls wait at the same time.
package container
