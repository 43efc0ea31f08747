package watch

import (
	"context"
	"os"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// Mounts returns a channel that receives after a change of the file systems that are mounted for this process (mountinfo in
// proc_pid_mountinfo(5)). Changes that come before the caller receives are one message. Without /proc the channel never
// receives. Its goroutine ends with ctx. Between changes it sleeps and uses no processor time.
func Mounts(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return changed
	}
	context.AfterFunc(ctx, func() { _ = f.Close() }) // the error does not matter, because the file was only read
	guard.Go("waiting for mounts", func() {
		conn, _ := f.SyscallConn() // an open file causes no error
		asked := false
		wait := func(uintptr) bool { asked = !asked; return !asked } // after false, Read waits for a change and calls wait again
		_ = conn.Read(wait)                                          // the kernel reports one change that is none, after the file was opened
		for conn.Read(wait) == nil {
			pause.Wake(changed)
		}
	})
	return changed
}
