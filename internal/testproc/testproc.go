// Package testproc turns a test binary into misbehaving children, for tests of everything that handles processes. A test
// package calls [Main] first thing in its TestMain and starts children with [Argv]. It owns only the goroutines of the
// children it becomes.
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
)

// prefix marks the argv[0] under which the binary is such a child.
const prefix = "testproc:"

// Argv returns the arguments that start a child with a role and its parameters. The command to execute is the test
// binary itself (/proc/self/exe), which Argv puts after the marker: run Argv()[0] with the whole slice as argv.
func Argv(role string, params ...string) []string {
	return append([]string{"/proc/self/exe", prefix + role}, params...)
}

// Main becomes the child if the process was started as one, and does not return then.
func Main() {
	if len(os.Args) < 2 || !strings.HasPrefix(os.Args[1], prefix) {
		return
	}
	os.Exit(run(strings.TrimPrefix(os.Args[1], prefix), os.Args[2:]))
}

func run(role string, params []string) int {
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
	case "sleep": // ends by the default action of a signal
		ready()
		forever()
	case "obey": // obey [CODE]: TERM ends it with an exit code
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		ready()
		<-term
		return number(0, 0)
	case "deaf": // TERM does nothing
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
		ready()
		forever()
	case "escape": // escape clean|tagged [deaf|headless]: starts a daemon by double fork and setsid, then sleeps
		return escape(params)
	case "hide": // hide [MARK]: lowers the mark that hinit gave it, as far as it goes, and is escape clean deaf
		mark := uint64(number(0, 1))
		if err := syscall.Setrlimit(15, &syscall.Rlimit{Cur: mark, Max: mark}); err != nil { // RLIMIT_RTTIME
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return escape([]string{"clean", "deaf"})
	case "sibling": // sibling: makes a deaf child of its own parent, in a session of its own, then sleeps until TERM
		return sibling()
	case "middle": // the process in the middle of a double fork
		pid, err := start(params[0] == "clean", true, "leaf", params[1:]...)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		fmt.Println(pid)
	case "leaf": // leaf [deaf|headless]
		if how := param(0, ""); how == "deaf" || how == "headless" {
			signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM)
			if how == "headless" {
				behead()
			}
		}
		forever()
	case "children": // children N: starts N sleeping children in its own group, then sleeps
		for range number(0, 1) {
			if _, err := start(false, false, "leaf"); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
		}
		ready()
		forever()
	case "status": // prints its /proc/self/status
		b, _ := os.ReadFile("/proc/self/status")
		_, _ = os.Stdout.Write(b)
	case "env":
		for _, kv := range os.Environ() {
			fmt.Println(kv)
		}
	case "signal": // signal PID TIMES SKIPPED...: sends every other signal so often in each way that there is
		return shower(number(0, 0), number(1, 1), params[2:])
	case "comet": // comet: starts a daemon that forks, makes a session and ends, for ever; then sleeps until TERM
		return comet()
	case "lease": // lease FILE: holds a write lease of a file of its own, so that execve(2) of it waits for /proc/sys/fs/lease-break-time
		return lease(params[0])
	case "eat": // eat BYTES: takes memory and sleeps
		food := make([]byte, number(0, 0))
		for i := 0; i < len(food); i += 4096 {
			food[i] = 1
		}
		ready()
		forever()
		runtime.KeepAlive(food)
	case "tracer": // tracer TID: traces a thread, and does not look at it
		return trace(unix.PTRACE_SEIZE, uintptr(number(0, 0)))
	case "traceme": // traceme: makes its parent its tracer, which stops it at its next execve(2)
		return trace(unix.PTRACE_TRACEME, 0)
	case "ids": // pid, group, session, directory
		sid, _, _ := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
		wd, _ := os.Getwd()
		fmt.Println(os.Getpid(), syscall.Getpgrp(), sid, wd)
	default:
		fmt.Fprintf(os.Stderr, "testproc: no role %q\n", role)
		return 2
	}
	return 0
}

func ready() { _, _ = io.WriteString(os.Stdout, "ready\n") }

func forever() {
	for {
		time.Sleep(time.Hour)
	}
}

func escape(params []string) int {
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
	_, _ = os.Stdout.Write(buf[:n]) // the daemon's process id
	forever()
	return 0
}

func start(clean, session bool, role string, params ...string) (int, error) {
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
