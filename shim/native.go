package shim

import (
	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/shim/agentuser"
	"hinit/shim/lifecycle"
)

// nativeEnv is the variable whose value 0 sends every command to the agent.
const nativeEnv = "HINIT_SHIM_NATIVE"

// execHinit replaces the process by hinit if hinit handles the command. If not, or if the exec fails, execHinit returns, and the
// agent handles the command. While PID 1 does not answer the commands of s6, hinit handles all commands that start or stop
// gateways. In that state, the agent itself would do nothing and report success, or wait for ever.
func (o *options) execHinit(argv, env []string) {
	if len(argv) < 3 || o.native == "" || lookupEnv(env, nativeEnv) == "0" {
		return
	}
	_, ok := lifecycle.Parse(argv[1:])
	ok = ok || lifecycle.ListsProfiles(argv[1:]) && o.isolatesAny()
	if !ok && (isDirectory(o.baseDir) || !lifecycle.ChangesGateways(argv[1:])) {
		return
	}
	if _, ok := executable(o.native); !ok {
		return
	}
	args := append([]string{agentuser.NativeName, o.target}, argv[1:]...)
	_ = unix.Exec(o.native, args, env) // after a failure the agent handles the command
}

// isolatesAny reports whether PID 1 has published a list of isolated profiles, which means that it isolates at least one.
func (o *options) isolatesAny() bool {
	var st unix.Stat_t
	return unix.Stat(o.root+account.RuntimeDir+"/"+account.IsolatedFile, &st) == nil && st.Size > 0
}

func isDirectory(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
