package boot

import (
	"os"
	"slices"
	"strings"

	"hinit/internal/notify"
	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

// ContainerEnv returns the container's environment without the variables of an outer hinit. HERMES_HOME is always set, so that the
// agent looks where hinit does, and PATH is the agent's.
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

// OuterEnv returns this process's environment without the variables of an outer hinit, and without the variables that lead a
// service to the supervisor of this container.
func OuterEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return name == proc.TagVar || slices.Contains(notify.Vars(), name)
	})
}
