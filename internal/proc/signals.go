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

// RestoreIgnoredSignals gives the default action to signals that this process has inherited as ignored. Otherwise its children
// would ignore them too (execve(2)). Go handles them in this process, which drops them. Call it once, early, besides
// signal.Notify.
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
	mask, _ := procstat.ReadStatus("self").Number("SigIgn", 16)
	for n := 1; n < 65; n++ {
		if mask&(1<<(n-1)) != 0 {
			ExchangeAction(syscall.Signal(n), SignalAction{})
		}
	}
}

// SignalAction is a buffer for the kernel's struct sigaction, whose size depends on the architecture and is at most 64 bytes.
// All zeros mean the default action without flags.
type SignalAction [64]byte

// ExchangeAction sets the action of a signal, and returns the old action. In the system call, 8 is the size of the kernel's
// signal set in bytes.
func ExchangeAction(s syscall.Signal, action SignalAction) (old SignalAction) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return old
}

// SIGCHLDSilencer returns a function that turns the delivery of SIGCHLD off (true) or on (false), for a flood of dying orphans.
// While it is off, dead children stay zombies until they are reaped (unlike with SIG_IGN, see wait(2)). signal.Stop does not
// suffice: the Go runtime would still handle each signal. Only one goroutine may call the function.
func SIGCHLDSilencer() func(quiet bool) {
	var delivered SignalAction
	quietNow := false
	return func(quiet bool) {
		if quiet == quietNow {
			return
		}
		quietNow = quiet
		if quiet {
			delivered = ExchangeAction(unix.SIGCHLD, SignalAction{})
		} else {
			ExchangeAction(unix.SIGCHLD, delivered)
		}
	}
}

// faultSignals lists the signals that the kernel raises when a process makes an error, such as SIGSEGV. They end a Go
// program. Other processes can send them too.
var faultSignals = slices.DeleteFunc([]syscall.Signal{
	unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS,
	unix.SignalNum("SIGSTKFLT"),
}, func(s syscall.Signal) bool { return s == 0 })

// runtimeDefaultSignals lists signals for which the Go runtime keeps the default action, which ends the process. The kernel
// drops them for process 1, except while its first thread blocks the signal. Then another thread gets the signal
// (complete_signal and sig_ignored in kernel/signal.c).
var runtimeDefaultSignals = []syscall.Signal{32, 34}

// The signal handler in sentfault_linux_*.s writes these variables. The index is the signal number.
var (
	sentCount    [65]uint64
	sentFrom     [65]uint64 // PID of the last sender, with its user in the upper 32 bits; all ones if unknown
	faultHandler uintptr    // handler of the Go runtime, for signals from the kernel
)

// IgnoreSentFaults makes this process ignore the runtimeDefaultSignals, and SIGSEGV and similar signals of other processes. A
// fault of the process itself keeps its effect. The kernel raises no SIGABRT and no SIGSTKFLT, so they are always ignored. The
// Go runtime does not suffice, because it takes a signal from sigqueue(3), mq_notify(3) or fcntl(2) F_SETSIG for a fault.
//
// The channel gets a signal after one was ignored; [SentFaults] says which. Call IgnoreSentFaults once. Children start with the
// default actions, because this process handles the signals instead of setting them to "ignore".
func IgnoreSentFaults() (signals <-chan os.Signal) {
	c := make(chan os.Signal, 1)
	for _, s := range faultSignals {
		signal.Notify(c, s) // get the signals that the runtime recognizes as sent
	}
	if sentHandler == 0 {
		return c
	}
	var ours SignalAction
	for _, s := range faultSignals {
		var action SignalAction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		handler := (*uintptr)(unsafe.Pointer(&action))
		if errno != 0 || *handler == 0 || faultHandler != 0 && *handler != faultHandler {
			continue // the handler is not the Go runtime's
		}
		faultHandler, *handler = *handler, sentHandler
		ExchangeAction(s, action)
		ours = action
	}
	// The Go runtime would end the process on the signals 32 and 34. So the handler tells it the number 16 instead, which must be
	// SIGSTKFLT.
	if ours != (SignalAction{}) && unix.SignalNum("SIGSTKFLT") == 16 {
		for _, s := range runtimeDefaultSignals {
			ExchangeAction(s, ours)
		}
	}
	return c
}

// SentFault counts how often other processes sent a signal that this process ignored, and names the last sender.
type SentFault struct {
	Signal syscall.Signal
	Count  uint64
	PID    int // PID of the last sender, in this process's namespace; 0 if unknown
	UID    int // user of the sender; -1 if unknown
}

// SentFaults returns an entry for each signal of IgnoreSentFaults that another process has sent since this process started. Of
// several pending signals with the same number, only one is counted.
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
