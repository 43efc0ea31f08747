package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// The other programs in this binary, by their first argument.
const (
	roleContain = "@contain" // The arguments are the command line of the init to become.
	roleLoop    = "@loop"    // The arguments are the number of services and the command of each.
	roleShims   = "@shims"   // The argument is a shimOrder as JSON; the role prints the times as JSON.
	roleAgent   = "@agent"   // The argument is an agentOrder as JSON; the role prints the times as JSON.
)

func runRole(name string, args []string) error {
	switch name {
	case roleContain:
		return becomeContainer(args)
	case roleLoop:
		return runLoop(args)
	case roleShims:
		return answerOrder(args[0], timeShims)
	case roleAgent:
		return answerOrder(args[0], timeAgent)
	}
	return fmt.Errorf("there is no %q in here", name)
}

// answerOrder decodes a JSON order, executes it with do, and prints the measured times.
func answerOrder[T any](text string, do func(T) (map[string][]float64, error)) error {
	var order T
	if err := json.Unmarshal([]byte(text), &order); err != nil {
		return err
	}
	took, err := do(order)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(took)
}

// becomeContainer prepares a new PID namespace like a container runtime: it mounts /proc and an
// empty /run. It executes the init when descriptor 3 becomes readable, so that the preparation is
// not measured.
func becomeContainer(argv []string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := unix.Mount("run", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if _, err := unix.Write(4, []byte{0}); err != nil {
		return err
	}
	if _, err := unix.Read(3, make([]byte, 1)); err != nil {
		return err
	}
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	return unix.Exec(program, argv, os.Environ())
}

// runLoop implements [loopPeer]: it starts the services one after the other. After SIGTERM it
// signals all of them and waits for their exit.
func runLoop(argv []string) error {
	runtime.LockOSThread()
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	n, err := strconv.Atoi(argv[0])
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	attr := &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{null.Fd(), null.Fd(), null.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	}
	pids := make([]int, n)
	for i := range pids {
		if pids[i], err = syscall.ForkExec(argv[1], argv[1:], attr); err != nil {
			return err
		}
	}
	<-stop
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			return err
		}
	}
	for range pids {
		for {
			if _, err = unix.Wait4(-1, nil, 0, nil); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}
