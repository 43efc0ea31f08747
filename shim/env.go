package shim

import (
	"slices"
	"strings"
)

// truthy is the contract's idea of "yes": 1, true or yes, in any case. Anything else is no, so that a typo drops root.
func truthy(value string) bool {
	return value == "1" || strings.EqualFold(value, "true") || strings.EqualFold(value, "yes")
}

// lookupEnv returns the value of key, "" when it isn't set; the first one counts, as for getenv(3).
func lookupEnv(env []string, key string) string {
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && k == key {
			return v
		}
	}
	return ""
}

// withEnv returns a copy of env in which key has the value, at its old place or at the end, and everything else is as it
// was.
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

// AgentPath is a PATH as the agent's own programs have it: the volume's .local/bin, if it is in there at all, comes before the
// directories of the system, which is how an agent replaces a tool for itself. In the image it comes after them, so that
// `docker exec` as root runs nothing that the agent has put there. home is the agent's.
func AgentPath(path, home string) string {
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
