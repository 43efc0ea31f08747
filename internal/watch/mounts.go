package watch

import (
	"context"
	"os"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// Mounts returns a channel that receives after a change of the file systems that are mounted for this process (mountinfo in
// proc_pid_mountinfo(5)), and perhaps once before. Changes that come before the caller receives are one message. Without /proc
// the channel never receives. Its goroutine ends with ctx. Between changes it sleeps and uses no processor time.
func Mounts(ctx context.Context) <-chan struct{} {
	changed := make(chan struct{}, 1)
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return changed
	}
	context.AfterFunc(ctx, func() { _ = f.Close() }) // the error does not matter, because the file was only read
	guard.Go("waiting for mounts", func() {
		conn, _ := f.SyscallConn() // an open file causes no error
		wake := func() {}
		// A single Read, because each Read forgets a change that came before it. So it may forget what the kernel reports after
		// the file was opened, which is no change.
		_ = conn.Read(func(uintptr) bool {
			wake()
			wake = func() { pause.Wake(changed) }
			return false // Read waits for the next change, and calls this function again
		})
	})
	return changed
}
