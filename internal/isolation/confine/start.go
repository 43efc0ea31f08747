//go:build linux && (amd64 || arm64)

package confine

import (
	"hinit/internal/entry"
	"hinit/internal/entry/bare"
)

// Only assembly calls begin, so Go tools would report it as unused.
var _ = begin

// begin runs before the Go runtime: the assembly function hinit_bare calls it. PID 1 starts this program under the name
// hinit-limits, so that a single program changes the user and isolates the process. If begin returns, the runtime starts, and
// [Main] runs.
func begin(stack *uintptr) {
	argv, env := bare.InitialStack(stack)
	if argv.Index(0) == entry.LimitsProgramName {
		entry.ChangeUserAndExec(argv, env, isolate)
		return
	}
	isolate(argv, env)
}
