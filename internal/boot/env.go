package boot

import (
	"os"
	"slices"
	"strings"

	"hinit/internal/proc"
	"hinit/shim"
)

// ContainerEnv is the environment the container was started with, without what an outer hinit may have put there.
// HERMES_HOME is always in it, for the agent must look where hinit does, and PATH is the agent's.
func ContainerEnv(home string) []string {
	env := OuterEnv()
	if os.Getenv("HERMES_HOME") == "" {
		env = proc.SetEnv(env, map[string]string{"HERMES_HOME": home})
	}
	if path := proc.Getenv(env, "PATH"); path != "" {
		env = proc.SetEnv(env, map[string]string{"PATH": shim.AgentPath(path, home)})
	}
	return env
}

// OuterEnv is the environment of this process without what an outer hinit may have put there.
func OuterEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, proc.TagVar+"=") })
}
