package proc

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigchldInfo is the part of siginfo_t that the kernel fills in for SIGCHLD (sigaction(2)). unix.Siginfo hides these
// fields behind padding. On 64-bit machines the union after the three ints is aligned to 8 bytes; the MIPS order of
// errno and code does not matter here because neither is read.
type sigchldInfo struct {
	_   [3]int32
	_   [(unsafe.Sizeof(uintptr(0)) - 4) / 4]int32
	pid int32
	uid uint32
	_   [unsafe.Sizeof(unix.Siginfo{}) - 5*4 - (unsafe.Sizeof(uintptr(0)) - 4)]byte
}

// peek returns the process id of a child that has ended and is not buried yet, without burying it; 0 when there is none.
// childless is true when this process has no child at all. It never blocks.
func peek() (pid int, childless bool) {
	for {
		var info sigchldInfo
		// No __WALL: a clone child of the Go runtime (its probe for pidfd support) is not ours to take.
		err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			return int(info.pid), false
		case errors.Is(err, unix.EINTR):
			continue
		default: // ECHILD is the only other answer to these arguments
			return 0, true
		}
	}
}

// bury reaps one child that peek named.
func bury(pid int) (unix.WaitStatus, unix.Rusage) {
	var status unix.WaitStatus
	var usage unix.Rusage
	for {
		_, err := unix.Wait4(pid, &status, unix.WNOHANG, &usage)
		if !errors.Is(err, unix.EINTR) {
			return status, usage
		}
	}
}
