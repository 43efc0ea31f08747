package proc

import (
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// faultSignals are those that the kernel raises for a fault and by which a Go program ends. A process can send them too.
var faultSignals = slices.DeleteFunc([]syscall.Signal{
	unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSYS,
	unix.SignalNum("SIGSTKFLT"), // 0 on MIPS, which has none
}, func(s syscall.Signal) bool { return s == 0 })

// bareSignals are the signals that the Go runtime leaves at their default action, which is to end the process. The kernel drops
// them for process 1, with one exception. While only the first thread blocks the signal, as in a signal handler or a fork,
// another thread gets it (complete_signal and sig_ignored in kernel/signal.c).
var bareSignals = []syscall.Signal{32, 34}

// The handler in sentfault_linux_*.s writes these. Index is the number of a signal.
var (
	sentCount    [65]uint64
	sentFrom     [65]uint64 // process id, and 32 bits further up the user; all ones when it is not known
	faultHandler uintptr    // of the Go runtime
)

// IgnoreSentFaults makes this process ignore SIGSEGV and its like when a process sends them, and the two signals that the Go
// runtime does not handle. Raised by the kernel they do what they did before. The kernel never raises SIGABRT and SIGSTKFLT, so
// these are always sent. The Go runtime can tell the two apart for kill(2) only. It takes the signals of sigqueue(3),
// mq_notify(3) and fcntl(2) F_SETSIG for faults of its own. News comes after one was ignored; [SentFaults] tells which. It is to
// be called once. Children start with the default action, because the signals are handled and not ignored.
func IgnoreSentFaults() (news <-chan os.Signal) {
	c := make(chan os.Signal, 1)
	for _, s := range faultSignals {
		signal.Notify(c, s) // what it takes for sent goes to the channel and does nothing else
	}
	if sentHandler == 0 {
		return c
	}
	var ours sigaction
	for _, s := range faultSignals {
		var action sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0)
		handler := (*uintptr)(unsafe.Pointer(&action)) // the first field on amd64 and arm64
		if errno != 0 || *handler == 0 || faultHandler != 0 && *handler != faultHandler {
			continue // not the runtime's
		}
		faultHandler, *handler = *handler, sentHandler
		exchange(s, action)
		ours = action
	}
	if ours != (sigaction{}) && unix.SignalNum("SIGSTKFLT") == 16 { // by whose news theirs comes
		for _, s := range bareSignals {
			exchange(s, ours)
		}
	}
	return c
}

// SentFault is how often a signal was sent and ignored.
type SentFault struct {
	Signal syscall.Signal
	Count  uint64
	PID    int // the last sender, in this process's namespace; 0 when it is not known
	UID    int // its user; -1 when it is not known
}

// SentFaults returns what was ignored since the process began. Signals that came while one was pending are not counted.
func SentFaults() []SentFault {
	var all []SentFault
	for _, s := range slices.Concat(faultSignals, bareSignals) {
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
