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

// shower sends signals: with kill(2), with tgkill(2) to the first thread, with fcntl(2) F_SETSIG, and as sigqueue(3), mq_notify(3) and
// SIGIO do. They differ in the si_code that comes with them.
func shower(pid, times int, skipped []string) int {
	codes := []int32{-1, -3, -5} // SI_QUEUE, SI_MESGQ, SI_SIGIO
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
				info := [32]int32{int32(n), 0, code} // siginfo_t
				if _, _, errno := syscall.RawSyscall(syscall.SYS_RT_SIGQUEUEINFO, uintptr(pid), uintptr(n), uintptr(unsafe.Pointer(&info))); errno != 0 && err == nil {
					err = errno
				}
			}
			if err == nil {
				err = SignalByDescriptor(pid, n)
			}
			if err != nil && !errors.Is(err, syscall.EAGAIN) { // so many wait already
				fmt.Fprintf(os.Stderr, "cannot send signal %d: %v\n", n, err)
				return 1
			}
		}
	}
	fmt.Println("sent")
	return 0
}

// SignalByDescriptor lets the kernel send a signal, as it does when a descriptor is readable. The si_code is above 0 for signals that have
// none of their own.
func SignalByDescriptor(pid int, n syscall.Signal) error {
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(ends[1])
	defer syscall.Close(ends[0]) // first: what happens to the other end would send one more
	for _, set := range [][2]uintptr{{unix.F_SETSIG, uintptr(n)}, {syscall.F_SETOWN, uintptr(pid)}, {syscall.F_SETFL, syscall.O_ASYNC}} {
		if _, _, errno := syscall.RawSyscall(syscall.SYS_FCNTL, uintptr(ends[0]), set[0], set[1]); errno != 0 {
			return errno
		}
	}
	_, err = syscall.Write(ends[1], []byte{0})
	return err
}

// comet starts a daemon by a double fork that lives on as its own child, in a new session each time, and sleeps. Its generations
// are deaf to TERM, and each is gone long before anybody has read the process table.
func comet() int {
	runtime.LockOSThread()
	if pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); pid == 0 {
		fly()
	}
	obey := make(chan os.Signal, 1)
	signal.Notify(obey, syscall.SIGTERM)
	ready()
	<-obey
	return 0
}

// fly runs in a copy of a process with many threads, and the copy has only this one. So it may use system calls only, and no
// other part of the Go runtime.
//
//go:nosplit
//go:norace
func fly() {
	blocked := ^uint64(0)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&blocked)), 0, 8, 0, 0) // SIG_BLOCK
	for {
		if pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0); pid != 0 {
			_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0) // no fork succeeds any more where pid is an error
		}
		_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	}
}

// trace makes one request of ptrace(2) on the thread that stays, and then executes a process that sleeps, or is one itself.
func trace(request, thread uintptr) int {
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
	ready()
	forever()
	return 0
}

// sibling makes a process that is a child of its parent from the start, and sleeps until TERM.
func sibling() int {
	obey := make(chan os.Signal, 1)
	signal.Notify(obey, syscall.SIGTERM)
	runtime.LockOSThread()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.CLONE_PARENT)|uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if pid == 0 {
		settle()
	}
	if errno != 0 {
		fmt.Fprintln(os.Stderr, errno)
		return 1
	}
	fmt.Println(pid)
	<-obey
	return 0
}

// settle is as fly, but stays.
//
//go:nosplit
//go:norace
func settle() {
	blocked := ^uint64(0)
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, 0, uintptr(unsafe.Pointer(&blocked)), 0, 8, 0, 0) // SIG_BLOCK
	_, _, _ = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0)
	for fd := range uintptr(3) {
		_, _, _ = syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	}
	for {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
}

// init keeps what is to end its first thread on that thread.
func init() { //nolint:gochecknoinits // only before main is the first thread known to be the one that runs
	if slices.Equal(os.Args[1:], Argv("leaf", "headless")[1:]) {
		runtime.LockOSThread()
	}
}

// behead ends the first thread of this process alone. The process is shown as a zombie then, and lives on.
func behead() {
	go forever()
	_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
}

// lease holds a write lease of a file (fcntl(2), F_SETLEASE): whoever opens or executes it waits until the kernel breaks the lease.
func lease(path string) int {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGIO) // by which the kernel asks for it
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot hold a lease of %s: %v\n", path, err)
		return 1
	}
	ready()
	time.Sleep(time.Hour)
	return 0
}
