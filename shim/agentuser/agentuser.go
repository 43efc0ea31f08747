// Package agentuser defines how programs of the agent run: the order of PATH, the files that they inherit, and the name of the
// program for gateway commands. The shim and PID 1 use it. It has few imports, because the shim runs before every command of
// the agent. It starts no goroutine.
package agentuser

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NativeArgv0 is the name (argv[0]) by which the shim calls hinit for a gateway command, such as `hermes gateway start`. The
// first argument is the agent's own program, which hinit runs for commands that it doesn't handle. The other arguments are the
// words that the user typed.
const NativeArgv0 = "hinit-gateway"

// AgentPath returns a PATH for the agent's programs. If path contains .local/bin of home, the agent's home, that directory moves
// before the system's directories, so that the agent can replace a tool for itself. In the image's PATH it comes last, so that
// `docker exec` as root runs no program that the agent has put there.
func AgentPath(path, home string) string {
	own := home + "/.local/bin"
	dirs := strings.Split(path, ":")
	at, system := slices.Index(dirs, own), slices.IndexFunc(dirs, func(dir string) bool {
		return slices.Contains([]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, dir)
	})
	if system < 0 || at < system {
		return path
	}
	dirs = slices.Delete(dirs, at, at+1)
	return strings.Join(slices.Insert(dirs, system, own), ":")
}

// CloseOnExec makes execve(2) close all descriptors from 3 up, so that the agent's program gets none that root has opened. Call
// it as root: after the change of user, /proc/self still belongs to root and can't be read.
func CloseOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecByName() // before Linux 5.11, or under a seccomp filter
}

func closeOnExecByName() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= 3 {
			unix.CloseOnExec(fd)
		}
	}
	return err
}
