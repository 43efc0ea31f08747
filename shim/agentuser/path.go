// Package agentuser defines how the agent's programs run: the order of PATH, and the name of the program for gateway commands.
// The shim and PID 1 use it. It has few imports, because the shim runs before every command. It starts no goroutine.
package agentuser

import (
	"slices"
	"strings"
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
