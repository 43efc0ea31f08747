package units

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// PauseName is argv[0] of the placeholder process that runs in place of a CMD "gateway run". Its program may be hinit itself.
const PauseName = "sleep"

// PlaceholderUnit returns the unit of the placeholder process that runs in place of a CMD "gateway run", whose gateway is a
// supervised service (contract, section 3.1). Its command line is "sleep infinity", because tools for the image look for that
// process. path is a program that sleeps, or hinit.
func PlaceholderUnit(path string, env []string, cred *proc.Cred) supervisor.Unit {
	return supervisor.Unit{
		Name: CmdName, Kind: supervisor.KindPlaceholder,
		Policy: supervisor.Policy{
			Backoff:    backoff.Policy{Initial: time.Second, Max: time.Minute, Factor: 2},
			ResetAfter: time.Minute, StopSignal: int(unix.SIGTERM), Grace: time.Second,
		},
		Spec:  proc.Spec{Path: path, Argv: []string{PauseName, "infinity"}, Env: env, Dir: "/", Cred: cred},
		Stdio: make([]*os.File, 3),
	}
}

// RunPlaceholder works as "sleep infinity": it sleeps until a signal kills the process.
func RunPlaceholder() int {
	for {
		_ = unix.Pause()
	}
}
