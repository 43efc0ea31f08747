package gateway

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dieBy ends this process by a signal, so that its parent sees a signal and not an exit code. It first restores the kernel's
// default action, because the Go runtime would turn most signals into a stack trace and exit code 2. It returns only if the
// signal does not kill.
func dieBy(sig unix.Signal) error {
	// Prevent a core file, which this crash does not need.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if sig != unix.SIGKILL && sig != unix.SIGSTOP {
		var defaultAction [4]uint64 // The kernel's struct sigaction, all zero: SIG_DFL, no flags, empty mask.
		const maskSize = 8
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&defaultAction)), 0, maskSize, 0, 0); errno != 0 {
			return fmt.Errorf("cannot reset %s: %w", unix.SignalName(sig), errno)
		}
	}
	if err := unix.Kill(unix.Getpid(), sig); err != nil {
		return fmt.Errorf("cannot send %s to this process: %w", unix.SignalName(sig), err)
	}
	<-time.After(time.Second) // Another thread may get the signal a moment later, so wait.
	return fmt.Errorf("%s did not end this process", unix.SignalName(sig))
}
