package notify_test

import (
	"runtime"

	"golang.org/x/sys/unix"
)

func lockThread() { runtime.LockOSThread() }

// setFSUser sets the file system uid of the calling thread and drops the thread's capabilities that bypass permissions.
func setFSUser(uid uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
