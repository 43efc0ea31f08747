package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// trueName is the row of /bin/true. No command can be faster.
const trueName = "/bin/true"

// emptyName is the row of an empty Go program. No Go command can be faster.
const emptyName = "empty Go program"

func waitEnd(fd int) error {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, err := unix.Poll(fds, 1000)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if n == 1 {
			return nil
		}
	}
	return errors.New("the process does not end")
}

// exitError means that a command has ended with another code than 0.
type exitError struct {
	argv []string
	code int
}

func (e exitError) Error() string { return fmt.Sprintf("%q ended with %d", e.argv, e.code) }

// launch starts a command with few system calls, and returns the start time. The returned function
// waits for the exit, and returns an error if the exit code is not 0.
func launch(env []string, dir string, argv []string) (time.Time, func() error, error) {
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return time.Time{}, nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return time.Time{}, nil, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: dir, Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/"}, env...),
		Files: []uintptr{null.Fd(), null.Fd(), null.Fd()},
	}
	begin := time.Now()
	pid, err := syscall.ForkExec(program, argv, attr)
	if err != nil {
		return begin, nil, err
	}
	return begin, func() error {
		var status syscall.WaitStatus
		for {
			if _, err := syscall.Wait4(pid, &status, 0, nil); !errors.Is(err, unix.EINTR) {
				if err == nil && status != 0 {
					err = exitError{argv, status.ExitStatus()}
				}
				return err
			}
		}
	}, nil
}

// timeCommands returns how long the commands take in a row, including the start and exit of their
// processes.
func timeCommands(env []string, dir string, commands [][]string) (time.Duration, error) {
	var took time.Duration
	for _, argv := range commands {
		begin, end, err := launch(env, dir, argv)
		if err == nil {
			err = end()
		}
		if err != nil {
			return 0, err
		}
		took += time.Since(begin)
	}
	return took, nil
}

func run(env []string, argv ...string) error {
	_, err := timeCommands(env, "", [][]string{argv})
	return err
}
