package testproc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendAllSignals sends all signals except the skipped ones to a process, each in several ways. It uses kill(2), tgkill(2) to
// the first thread, fcntl(2) F_SETSIG, and rt_sigqueueinfo(2) in the way of sigqueue(3), mq_notify(3) and SIGIO. The process
// gets another si_code in each way.
func sendAllSignals(pid, times int, skipped []string) int {
	codes := []int32{-1, -3, -5}
	for range times {
		for n := syscall.Signal(1); n < 65; n++ {
			if slices.Contains(skipped, strconv.Itoa(int(n))) {
				continue
			}
			err := syscall.Kill(pid, n)
			if err == nil {
				err = syscall.Tgkill(pid, pid, n)
			}
			for _, code := range codes {
				info := [32]int32{int32(n), 0, code}
				if _, _, errno := syscall.RawSyscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(n), uintptr(unsafe.Pointer(&info))); errno != 0 && err == nil {
					err = errno
				}
			}
			if err == nil {
				err = SignalByDescriptor(pid, n)
			}
			if err != nil && !errors.Is(err, syscall.EAGAIN) {
				fmt.Fprintf(os.Stderr, "cannot send signal %d: %v\n", n, err)
				return 1
			}
		}
	}
	fmt.Println("sent")
	return 0
}

// SignalByDescriptor makes the kernel send a signal as if a descriptor had become readable. A signal without its own si_code
// values then has a si_code above 0.
func SignalByDescriptor(pid int, n syscall.Signal) error {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(ends[1])
	defer syscall.Close(ends[0])
	for _, set := range [][2]uintptr{{unix.F_SETSIG, uintptr(n)}, {syscall.F_SETOWN, uintptr(pid)}, {syscall.F_SETFL, syscall.O_ASYNC}} {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(ends[0]), set[0], set[1]); errno != 0 {
			return errno
		}
	}
	_, err = syscall.Write(ends[1], []byte{0})
	return err
}

// startForkChain starts a daemon that forks again and again. Each child starts a new session and its parent ends. So each
// process is gone long before a program can read the whole process table. All these processes block SIGTERM. startForkChain
// itself sleeps until SIGTERM.
func startForkChain() int {
	runtime.LockOSThread()
	if pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
		forkForever()
	}
	obey := make(chan os.Signal, 1)
	signal.Notify(obey, syscall.SIGTERM)
	printReady()
	<-obey
	return 0
}

// forkForever is the daemon that startForkChain starts. It runs after a bare fork of a process with many threads, and only this
// thread exists in the child. So it may use only system calls, and no other part of the Go runtime.
//
//go:nosplit
//go:norace
func forkForever() {
	blocked := ^uint64(0)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&blocked)), 0, 8, 0, 0)
	for {
		if pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); pid != 0 {
			// The parent ends; after a failed fork, the whole chain ends.
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
}

// requestTrace makes one request of ptrace(2). After PTRACE_TRACEME it executes a program that sleeps. After any other request it
// sleeps itself. It stays on one thread, because the tracer is a thread and not a process.
func requestTrace(request, thread uintptr) int {
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, request, thread, 0, 0, 0, 0); errno != 0 {
		fmt.Fprintln(os.Stderr, "ptrace:", errno)
		return 1
	}
	if request == unix.PTRACE_TRACEME {
		argv := Argv("sleep")
		err := syscall.Exec(argv[0], argv, os.Environ())
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	printReady()
	sleepForever()
	return 0
}

func startSibling() int {
	obey := make(chan os.Signal, 1)
	signal.Notify(obey, syscall.SIGTERM)
	runtime.LockOSThread()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.CLONE_PARENT)|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 {
		runSibling()
	}
	if errno != 0 {
		fmt.Fprintln(os.Stderr, errno)
		return 1
	}
	fmt.Println(pid)
	<-obey
	return 0
}

// runSibling is the process that sibling makes. Like forkForever it may use only system calls. It blocks all signals and sleeps
// for ever.
//
//go:nosplit
//go:norace
func runSibling() {
	blocked := ^uint64(0)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&blocked)), 0, 8, 0, 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	for fd := range uintptr(3) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	}
	for {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// init locks the main goroutine of a headless process to the first thread of the process, which [endFirstThread] must end.
func init() { //nolint:gochecknoinits // only before main is the first thread known to be the running one
	if slices.Contains(os.Args[1:], "headless") && !slices.Contains(os.Args[1:], "escape") {
		runtime.LockOSThread()
	}
}

// endFirstThread ends only the first thread of this process. The kernel then shows the process as a zombie, although it lives on.
func endFirstThread() {
	go sleepForever()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

// holdLease holds a write lease of a file (fcntl(2), F_SETLEASE). A process that opens or executes the file waits until the
// kernel breaks the lease.
func holdLease(path string) int {
	// Catch the signal with which the kernel asks for the release of the lease.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGIO)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot hold a lease of %s: %v\n", path, err)
		return 1
	}
	printReady()
	time.Sleep(time.Hour)
	return 0
}
