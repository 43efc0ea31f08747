package shim

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// truthy reports whether a value means yes, as the contract defines it: 1, true or yes, in upper or lower case. Any other value
// means no, so a typo makes the shim drop root.
func truthy(value string) bool {
	return value == "1" || strings.EqualFold(value, "true") || strings.EqualFold(value, "yes")
}

// lookupEnv returns the value of the variable key in env, or "". If key occurs several times, the first value counts, as in
// getenv(3).
func lookupEnv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// withEnv returns a copy of the environment env in which the variable key has the given value. The other variables and their
// order do not change.
func withEnv(env []string, key, value string) []string {
	out := make([]string, 0, len(env)+1)
	set := false
	for _, kv := range env {
		if strings.HasPrefix(kv, key+"=") {
			if set {
				continue
			}
			kv, set = key+"="+value, true
		}
		out = append(out, kv)
	}
	if !set {
		out = append(out, key+"="+value)
	}
	return out
}

// closeOnExec makes execve(2) close all descriptors from 3 up, so that the agent's program gets none that root opened.
func closeOnExec() error {
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
