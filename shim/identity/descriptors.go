package identity

import (
	"errors"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// CloseOnExec makes execve(2) close all descriptors from 3 up, so that the agent's program gets none that root opened. Call it as
// root, before [Become]: afterwards /proc/self still belongs to root and can't be read.
func CloseOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecByName() // before Linux 5.11, and under seccomp filters that don't know the call
}

func closeOnExecByName() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return errors.New("cannot find the open descriptors: " + err.Error())
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= 3 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
