// Package testproc makes misbehaving children, for tests of code that handles processes. A test package calls [Main] at the
// beginning of its TestMain and starts children with [Argv]. A child is the test binary, or a small program that only plays
// roles. The package owns only the goroutines of the children.
package testproc

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// rolePrefix is the beginning of a child's first argument. The name of the child's role follows it.
const rolePrefix = "testproc:"

// executable is the program that plays the roles: this program or, after [Main], the small program that make test has built. A
// test binary with the race detector takes seven times as long to start.
var executable = "/proc/self/exe"

// Argv returns the arguments that start a child with a role and its parameters. Execute Argv()[0] with the whole slice as its
// argv.
func Argv(role string, params ...string) []string {
	return append([]string{executable, rolePrefix + role}, params...)
}

// Main plays the child's role and exits, if this process was started with [Argv]. In any other process it returns. With the
// race detector, a child would sleep for a second when it exits. Main prevents that with an environment variable that
// children inherit.
func Main() {
	if len(os.Args) >= 2 && strings.HasPrefix(os.Args[1], rolePrefix) {
		os.Exit(playRole(strings.TrimPrefix(os.Args[1], rolePrefix), os.Args[2:]))
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	if built, err := testkit.SharedProgram("testproc"); err == nil && built != "" {
		executable = built
	}
}

func playRole(role string, params []string) int {
	param := func(i int, def string) string {
		if i < len(params) {
			return params[i]
		}
		return def
	}
	number := func(i, def int) int {
		n, err := strconv.Atoi(param(i, strconv.Itoa(def)))
		if err != nil {
			return def
		}
		return n
	}
	switch role {
	case "exit": // exit CODE [DELAY_MS]
		time.Sleep(time.Duration(number(1, 0)) * time.Millisecond)
		return number(0, 0)
	case "sleep": // sleep: sleeps until the default action of a signal ends it
		printReady()
		sleepForever()
	case "obey": // obey [CODE]: at SIGTERM it ends with this exit code
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		printReady()
		<-term
		return number(0, 0)
	case "deaf": // deaf: ignores SIGTERM, with a handler that does nothing
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
		printReady()
		sleepForever()
	case "escape": // escape clean|tagged [deaf|headless]: starts a daemon by double fork and setsid, then sleeps
		return playEscape(params)
	case "hide": // hide [MARK]: lowers the resource limit by which hinit marks a run to MARK, then does escape clean deaf
		mark := uint64(number(0, 1))
		if err := syscall.Setrlimit(15, &syscall.Rlimit{Cur: mark, Max: mark}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return playEscape([]string{"clean", "deaf"})
	case "sibling": // sibling: makes a child of its own parent that ignores SIGTERM, in a new session; then sleeps until SIGTERM
		return startSibling()
	case "middle": // middle: the process in the middle of a double fork
		pid, err := startRole(params[0] == "clean", true, "leaf", params[1:]...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(pid)
	case "leaf": // leaf [deaf|headless]: the process that a double fork leaves behind
		if how := param(0, ""); how == "deaf" || how == "headless" {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
			if how == "headless" {
				endFirstThread()
			}
		}
		sleepForever()
	case "children": // children N: starts N sleeping children in its own group, then sleeps
		for range number(0, 1) {
			if _, err := startRole(false, false, "leaf"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		printReady()
		sleepForever()
	case "status": // status: prints its /proc/self/status
		b, _ := os.ReadFile("/proc/self/status")
		_, _ = os.Stdout.Write(b)
	case "env":
		for _, kv := range os.Environ() {
			fmt.Println(kv)
		}
	case "signal": // signal PID TIMES SKIPPED...: sends all signals except the skipped ones, TIMES times in each way
		return sendAllSignals(number(0, 0), number(1, 1), params[2:])
	case "comet": // comet: starts a daemon that forks, makes a session and ends, for ever; then sleeps until SIGTERM
		return startForkChain()
	case "lease": // lease FILE: holds a write lease, so that execve(2) of the file waits for /proc/sys/fs/lease-break-time
		return holdLease(params[0])
	case "eat": // eat BYTES [headless]: allocates memory and sleeps
		food := make([]byte, number(0, 0))
		for i := 0; i < len(food); i += 4096 {
			food[i] = 1
		}
		printReady()
		if len(params) > 1 {
			endFirstThread()
		}
		sleepForever()
		runtime.KeepAlive(food)
	case "moments": // moments: runs a child that is busy for 60 ms, again and again, and has the kernel reap them
		signal.Ignore(syscall.SIGCHLD)
		for printReady(); ; {
			pid, err := syscall.ForkExec("/proc/self/exe", Argv("busy"), &syscall.ProcAttr{Env: os.Environ()})
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			_, _ = syscall.Wait4(pid, nil, 0, nil)
		}
	case "busy": // busy: uses a processor for 60 ms
		for end := time.Now().Add(60 * time.Millisecond); time.Now().Before(end); {
		}
	case "share": // share BYTES open|headless|hidden|mapped|parent: holds a file in memory without a name, open, open unseen, or mapped by two processes
		return playShare(number(0, 0), params[1])
	case "tracer": // tracer TID: traces a thread, and never waits for it
		return requestTrace(unix.PTRACE_SEIZE, uintptr(number(0, 0)))
	case "traceme":
		return requestTrace(unix.PTRACE_TRACEME, 0)
	case "ids": // ids: prints its pid, process group, session and working directory
		sid, _, _ := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
		wd, _ := os.Getwd()
		fmt.Println(os.Getpid(), syscall.Getpgrp(), sid, wd)
	default:
		fmt.Fprintf(os.Stderr, "testproc: no role %q\n", role)
		return 2
	}
	return 0
}

func printReady() { _, _ = io.WriteString(os.Stdout, "ready\n") }

func sleepForever() {
	for {
		time.Sleep(time.Hour)
	}
}

func playEscape(params []string) int {
	r, w, err := os.Pipe()
	if err != nil {
		return 1
	}
	env := os.Environ()
	pid, err := syscall.ForkExec("/proc/self/exe", Argv("middle", params...), &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, w.Fd(), 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = w.Close()
	buf := make([]byte, 32)
	n, _ := r.Read(buf)
	var ws syscall.WaitStatus
	_, _ = syscall.Wait4(pid, &ws, 0, nil)
	_, _ = os.Stdout.Write(buf[:n])
	sleepForever()
	return 0
}

func startRole(clean, session bool, role string, params ...string) (int, error) {
	env := os.Environ()
	if clean {
		env = nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	return syscall.ForkExec("/proc/self/exe", Argv(role, params...), &syscall.ProcAttr{
		Env: env, Files: []uintptr{null.Fd(), null.Fd(), 2}, Sys: &syscall.SysProcAttr{Setsid: session},
	})
}

// playShare plays the role of the same name. In the role "parent", the process maps the file and starts a process in the role
// "mapped" with the file as its standard input. Then it closes the file.
func playShare(bytes int, how string) int {
	fd := 0
	if how != "mapped" {
		var err error
		if fd, err = unix.MemfdCreate("shared", unix.MFD_CLOEXEC); err == nil {
			err = unix.Fallocate(fd, 0, 0, int64(bytes))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	if how == "hidden" {
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	} else if how != "open" && how != "headless" {
		memory, err := unix.Mmap(fd, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
		if err == nil && how == "parent" {
			_, err = syscall.ForkExec("/proc/self/exe", Argv("share", strconv.Itoa(bytes), "mapped"), &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{uintptr(fd), 1, 2}})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer runtime.KeepAlive(memory)
		_ = unix.Close(fd)
	}
	if how != "parent" {
		printReady()
	}
	if how == "headless" {
		endFirstThread()
	}
	sleepForever()
	return 0
}
