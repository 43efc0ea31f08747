package dial_test

import (
	"runtime"
	"syscall"
)

// listenAsUser calls listen(2) as another user. Only the calling thread changes its user, and the thread ends with its
// goroutine.
func listenAsUser(fd, uid int) error {
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
		return errno
	}
	return syscall.Listen(fd, 8)
}
