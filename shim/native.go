package shim

import (
	"golang.org/x/sys/unix"

	"hinit/shim/agentuser"
	"hinit/shim/lifecycle"
)

// nativeEnv set to 0 gives every command to the agent.
const nativeEnv = "HINIT_SHIM_NATIVE"

// goNative replaces the process by hinit where the command is one for it. It returns if the command is another one, or if the
// exec failed: the agent then handles the command. Where no program answers for s6, the agent would start nothing and report
// success, or wait for ever. So the agent is not asked to start or stop anything there.
func (o *options) goNative(argv, env []string) {
	if len(argv) < 3 || o.native == "" || lookupEnv(env, nativeEnv) == "0" {
		return
	}
	if _, ok := lifecycle.Parse(argv[1:]); !ok && (isDirectory(o.baseDir) || !lifecycle.Changes(argv[1:])) {
		return
	}
	if _, ok := executable(o.native); !ok {
		return
	}
	args := append([]string{agentuser.NativeName, o.target}, argv[1:]...)
	_ = unix.Exec(o.native, args, env) // if it fails, the agent can do it too
}

func isDirectory(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
