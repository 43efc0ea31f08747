package notify_test

import (
	"runtime"

	"golang.org/x/sys/unix"
)

func lockThread() { runtime.LockOSThread() }

// setFSUser makes the calling thread a user for the file system, without the capabilities of root for it.
func setFSUser(uid uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
