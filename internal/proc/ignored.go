package proc

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"hinit/internal/procstat"

	"golang.org/x/sys/unix"
)

// RestoreIgnoredSignals restores the default action of signals that this process inherited as ignored. Otherwise all children
// would also ignore these signals (execve(2)). This process itself catches and drops the signals that Go can handle. Call
// RestoreIgnoredSignals once, early, in addition to signal.Notify.
func RestoreIgnoredSignals() {
	var catch []os.Signal
	for n := syscall.Signal(1); n < 65; n++ {
		if signal.Ignored(n) {
			catch = append(catch, n)
		}
	}
	if len(catch) > 0 {
		signal.Notify(make(chan os.Signal, 1), catch...)
	}
	mask, _ := procstat.StatusOf("self").Number("SigIgn", 16) // the signals that this process ignores (proc_pid_status(5))
	for n := 1; n < 65; n++ {
		if mask&(1<<(n-1)) != 0 {
			exchangeAction(syscall.Signal(n), sigaction{})
		}
	}
}

// sigaction is a buffer for the kernel's struct of the same name, which has at most this size. All zeros mean SIG_DFL
// without flags, whatever the order of the fields.
type sigaction [64]byte

// exchangeAction sets the action of a signal and returns the old one. 8 is the size of the kernel's signal set.
func exchangeAction(s syscall.Signal, action sigaction) (old sigaction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return old
}

// MuteChildren returns a function that turns the delivery of SIGCHLD off (true) and on (false). While delivery is off, dead
// children stay zombies until this process reaps them (SIG_DFL of SIGCHLD, unlike SIG_IGN: wait(2)). signal.Stop would not
// suffice, because the Go runtime would still handle the signal. Only one goroutine may call the function.
func MuteChildren() func(quiet bool) {
	var heard sigaction
	quietNow := false
	return func(quiet bool) {
		if quiet == quietNow {
			return
		}
		quietNow = quiet
		if quiet {
			heard = exchangeAction(unix.SIGCHLD, sigaction{})
		} else {
			exchangeAction(unix.SIGCHLD, heard)
		}
	}
}
