// Package agentuser knows how the agent's programs are run: the order of PATH, and the words of gateway commands. The shim and PID 1 use it. It
// links little, because the shim runs before every command. It starts no goroutine.
package agentuser

import (
	"slices"
	"strings"
)

// Path returns a PATH as the agent's own programs have it. The volume's .local/bin, if the PATH has it, comes before the
// directories of the system. In this way an agent replaces a tool for itself. In the image it comes after them, so that `docker
// exec` as root runs nothing that the agent has put there. home is the agent's.
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
	switch dir {
	case "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin":
		return true
	}
	return false
}
