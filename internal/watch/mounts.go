package watch

import (
	"context"
	"os"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// Mounts returns a channel that receives after file systems were mounted or unmounted for this process (mountinfo in
// proc_pid_mountinfo(5)). It may also receive once without a change. Several changes before the caller receives are one message.
// Without /proc the channel never receives. A goroutine waits for changes until ctx ends, and uses no processor time meanwhile.
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
		// Read calls this function at once, and again after each change. A second Read would drop a change that came before it.
		// The kernel may report the opening of the file as a change.
		_ = conn.Read(func(uintptr) bool {
			wake()
			wake = func() { pause.Wake(changed) }
			return false // Read continues to wait
		})
	})
	return changed
}
