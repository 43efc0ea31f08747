package boot

import (
	"os"
	"slices"
	"strings"

	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

// ContainerEnv returns the container's environment without the variables of an outer hinit. It always has HERMES_HOME, so that
// the agent uses the same directory as hinit, and its PATH is the agent's.
func ContainerEnv(home string) []string {
	env := OuterEnv()
	if os.Getenv("HERMES_HOME") == "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	if path := proc.Getenv(env, "PATH"); path != "" {
		env = proc.SetEnv(env, map[string]string{"PATH": agentuser.Path(path, home)})
	}
	return env
}

// OuterEnv returns this process's environment without two kinds of variables: those set by an outer hinit, and those by which a
// service would reach this container's supervisor.
func OuterEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == proc.TagVar || slices.Contains(notify.Vars(), name)
	})
}
