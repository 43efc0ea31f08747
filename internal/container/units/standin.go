package units

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// StandInName is argv[0] of the process that stands in for a CMD "gateway run". It may be hinit itself.
const StandInName = "sleep"

// StandInUnit returns the unit of the process that stands in for a CMD "gateway run", because the gateway runs as a supervised
// service (contract, section 3.1). The process is "sleep infinity", which tools for the image search for. path is a program that
// sleeps, or hinit.
func StandInUnit(path string, env []string, cred *proc.Cred) supervisor.Unit {
	return supervisor.Unit{
		Name: CmdName, Kind: supervisor.KindStandIn,
		Policy: supervisor.Policy{
			Backoff:    backoff.Policy{Initial: time.Second, Max: time.Minute, Factor: 2},
			ResetAfter: time.Minute, StopSignal: int(unix.SIGTERM), Grace: time.Second,
		},
		Spec:  proc.Spec{Path: path, Argv: []string{StandInName, "infinity"}, Env: env, Dir: "/", Cred: cred},
		Stdio: make([]*os.File, 3), // /dev/null
	}
}

// StandIn is hinit's own version of "sleep infinity": it waits until a signal ends it.
func StandIn() int {
	for {
		_ = unix.Pause() // it returns only after a handled signal
	}
}
