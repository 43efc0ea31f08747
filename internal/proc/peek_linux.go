package proc

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigchldInfo is the part of siginfo_t that the kernel fills in for SIGCHLD (sigaction(2)). unix.Siginfo hides these fields
// behind padding. On 64-bit machines the union after the three ints is aligned to 8 bytes. codes holds errno, which is 0 here,
// and code; on MIPS their order is reversed.
type sigchldInfo struct {
	_     int32
	codes [2]int32
	_     [(unsafe.Sizeof(uintptr(0)) - 4) / 4]int32
	pid   int32
	uid   uint32
	_     [unsafe.Sizeof(unix.Siginfo{}) - 5*4 - (unsafe.Sizeof(uintptr(0)) - 4)]byte
}

// cldDumped is the highest siginfo code that reports the end of a child. Higher codes report that a child was stopped or
// continued.
const cldDumped = 3

// canWait returns an error if the kernel does not let this process learn about ended children, because of a seccomp(2)
// filter. The test needs no child. The result remains valid, because such a filter lasts as long as the process.
func canWait() error {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		return refused("waitid", err)
	}
	if _, err := unix.Wait4(os.Getpid(), nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) { // no process is its own child
		return refused("wait4", err)
	}
	return nil
}

func refused(call string, err error) error {
	return fmt.Errorf("cannot wait for processes: %s: %w; allow waitid and wait4 in the seccomp profile of the container (docker run --security-opt seccomp=FILE)", call, err)
}

// peek returns the PID of a child that has ended, without reaping it; 0 if there is none. childless reports that this process has
// no child at all. peek never blocks.
func peek() (pid int, childless bool) { return peekAt(unix.P_ALL, 0) }

// peekAt works like peek. kind and id select the children, as for waitid(2): one child (unix.P_PID) or all.
func peekAt(kind, id int) (pid int, childless bool) {
	for {
		var info sigchldInfo
		// __WALL is not needed: the only clone child is one of the Go runtime, from its test for pidfd support.
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == nil && max(info.codes[0], info.codes[1]) > cldDumped:
			// A child that makes this process its tracer (ptrace(2), PTRACE_TRACEME) also reports its stops. Such a child has not
			// ended, and its stop would hide the ends of other children.
			_ = unix.Waitid(unix.P_PID, int(info.pid), nil, unix.WSTOPPED|unix.WNOHANG, nil) // fails if the child has ended meanwhile
		case err == nil:
			return int(info.pid), false
		default: // canWait has found no error, so only ECHILD is possible here
			return 0, true
		}
	}
}

// Stopped reports whether a signal has stopped any child. It never blocks.
func Stopped() bool {
	var info sigchldInfo
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.pid != 0
}

// reap reaps a child that peek returned, which frees its PID. If a tracer holds the child, its exit status is unknown, and the
// exit code becomes -1.
func reap(pid int) (status unix.WaitStatus, usage unix.Rusage) {
	if reaped, _ := unix.Wait4(pid, &status, unix.WNOHANG, &usage); reaped == 0 {
		status = 0x7f
	}
	return status, usage
}
