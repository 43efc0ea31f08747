// Package agentuser knows how the agent's programs are run: the order of PATH, and the name of the program for gateway commands. The shim and
// PID 1 use it. It links little, because the shim runs before every command. It starts no goroutine.
package agentuser

import (
	"slices"
	"strings"
)

// NativeName is the name under which the shim calls hinit for a lifecycle command of a gateway. The first word after it
// is the agent's own program, for what hinit leaves to it; the others are what was typed.
const NativeName = "hinit-gateway"

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
