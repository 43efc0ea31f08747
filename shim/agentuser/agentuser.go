// Package agentuser defines how the agent's programs run: the order of PATH, the files that they inherit, and the name of the
// program for gateway commands. The shim and PID 1 use it. It has few imports, because the shim runs before every command. It
// starts no goroutine.
package agentuser

import (
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// NativeName is the name under which the shim calls hinit for a lifecycle command of a gateway. The first argument is the agent's
// own program. hinit runs this program for commands that hinit does not handle. The other arguments are the words that the user
// typed.
const NativeName = "hinit-gateway"

// Path reorders a PATH for the agent's programs. If path contains .local/bin of the agent's home, Path moves this directory
// before the system directories. So an agent can replace a tool for itself. In the image's PATH that directory comes last, so
// that `docker exec` as root runs no program that the agent has put there. The parameter home is the agent's home.
func Path(path, home string) string {
	own := home + "/.local/bin"
	dirs := strings.Split(path, ":")
	at, system := slices.Index(dirs, own), slices.IndexFunc(dirs, isSystem)
	if system < 0 || at < system {
		return path
	}
	dirs = slices.Delete(dirs, at, at+1)
	return strings.Join(slices.Insert(dirs, system, own), ":")
}

func isSystem(dir string) bool {
	return slices.Contains([]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}, dir)
}

// CloseOnExec makes execve(2) close all descriptors from 3 up, so that the agent's program gets none that root opened. Call it as
// root: afterwards /proc/self still belongs to root and can't be read.
func CloseOnExec() error {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	return closeOnExecByName() // before Linux 5.11, and under seccomp filters that don't know the call
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
