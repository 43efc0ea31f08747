package proc

import (
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
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
			ExchangeAction(syscall.Signal(n), SignalAction{})
		}
	}
}

// SignalAction is a buffer for the kernel's struct sigaction, which has at most this size. All zeros mean SIG_DFL
// without flags, whatever the order of the fields.
type SignalAction [64]byte

// ExchangeAction sets the action of a signal and returns the old one. 8 is the size of the kernel's signal set.
func ExchangeAction(s syscall.Signal, action SignalAction) (old SignalAction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return old
}

// MuteChildren returns a function that turns the delivery of SIGCHLD off (true) and on (false). While delivery is off, dead
// children stay zombies until this process reaps them (SIG_DFL of SIGCHLD, unlike SIG_IGN: wait(2)). signal.Stop would not
// suffice, because the Go runtime would still handle the signal. Only one goroutine may call the function.
func MuteChildren() func(quiet bool) {
	var heard SignalAction
	quietNow := false
	return func(quiet bool) {
		if quiet == quietNow {
			return
		}
		quietNow = quiet
		if quiet {
			heard = ExchangeAction(unix.SIGCHLD, SignalAction{})
		} else {
			ExchangeAction(unix.SIGCHLD, heard)
		}
	}
}

// faultSignals lists the signals that the kernel raises for a fault of the process itself, and that end a Go program. Other
// processes can also send these signals.
var faultSignals = slices.DeleteFunc([]syscall.Signal{
	unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS,
	unix.SignalNum("SIGSTKFLT"), // 0 on MIPS, which doesn't have it
}, func(s syscall.Signal) bool { return s == 0 })

// runtimeDefaultSignals lists the signals for which the Go runtime keeps the default action: to end the process. The kernel drops
// these signals for process 1, with one exception. While only the first thread blocks the signal, as in a signal handler or a
// fork, another thread gets it (complete_signal and sig_ignored in kernel/signal.c).
var runtimeDefaultSignals = []syscall.Signal{32, 34}

// The signal handler in sentfault_linux_*.s writes these variables. The arrays are indexed by signal number.
var (
	sentCount    [65]uint64
	sentFrom     [65]uint64 // PID of the last sender, plus its user shifted by 32 bits; all ones if unknown
	faultHandler uintptr    // the Go runtime's handler
)

// IgnoreSentFaults makes this process ignore the runtimeDefaultSignals, and SIGSEGV and similar signals if another process sends
// them. Signals that the kernel raises keep their effect. The kernel never raises SIGABRT and SIGSTKFLT, so these are always
// ignored. The Go runtime alone would not suffice, because it recognizes a sent signal only if kill(2) sent it. It mistakes
// signals from sigqueue(3), mq_notify(3) and fcntl(2) F_SETSIG for faults.
//
// The channel gets a signal after one was ignored; [SentFaults] says which. Call IgnoreSentFaults once. Children still start with
// the default actions, because this process handles the signals and does not set them to "ignore".
func IgnoreSentFaults() (news <-chan os.Signal) {
	c := make(chan os.Signal, 1)
	for _, s := range faultSignals {
		signal.Notify(c, s) // signals that the runtime itself recognizes as sent go to this channel and have no other effect
	}
	if sentHandler == 0 {
		return c
	}
	var ours SignalAction
	for _, s := range faultSignals {
		var action SignalAction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		handler := (*uintptr)(unsafe.Pointer(&action)) // the first field on amd64 and arm64
		if errno != 0 || *handler == 0 || faultHandler != 0 && *handler != faultHandler {
			continue // another handler than the Go runtime's is installed
		}
		faultHandler, *handler = *handler, sentHandler
		ExchangeAction(s, action)
		ours = action
	}
	if ours != (SignalAction{}) && unix.SignalNum("SIGSTKFLT") == 16 { // the handler counts a bare signal under the number of SIGSTKFLT
		for _, s := range runtimeDefaultSignals {
			ExchangeAction(s, ours)
		}
	}
	return c
}

// SentFault is a signal that was sent to this process and ignored, with the number of times and the last sender.
type SentFault struct {
	Signal syscall.Signal
	Count  uint64
	PID    int // PID of the last sender, in this process's namespace; 0 if unknown
	UID    int // user of the sender; -1 if unknown
}

// SentFaults returns the signals that were ignored since the start of the process. A signal that arrives while the same signal
// is pending is not counted.
func SentFaults() []SentFault {
	var all []SentFault
	for _, s := range slices.Concat(faultSignals, runtimeDefaultSignals) {
		n := atomic.LoadUint64(&sentCount[s])
		if n == 0 {
			continue
		}
		f := SentFault{Signal: s, Count: n, UID: -1}
		if from := atomic.LoadUint64(&sentFrom[s]); from != ^uint64(0) {
			f.PID, f.UID = int(from&0x7fffffff), int(from>>32)
		}
		all = append(all, f)
	}
	return all
}
