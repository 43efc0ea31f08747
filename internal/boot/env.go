package boot

import (
	"os"
	"slices"
	"strings"

	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

// ContainerEnv returns the environment for programs of the container, without the variables of an outer hinit. HERMES_HOME is
// always set, so that the agent uses the same directory as hinit. PATH is the agent's.
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

// OuterEnv returns this process's environment without two kinds of variables. The first kind was set by an outer hinit that
// supervises this one. Through the second kind a service would reach this container's supervisor.
func OuterEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == proc.TagVar || slices.Contains(notify.Vars(), name)
	})
}
