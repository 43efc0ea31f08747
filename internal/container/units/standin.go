package units

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// StandInName is argv[0] of the process that replaces a CMD "gateway run". The program may be hinit itself.
const StandInName = "sleep"

// StandInUnit returns the unit of the process that replaces a CMD "gateway run", because the gateway itself runs as a supervised
// service (contract, section 3.1). The process is called "sleep infinity", because tools for the image search for that name. path
// is a program that sleeps, or hinit.
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

// StandIn is hinit's own version of "sleep infinity": it sleeps until a signal kills it.
func StandIn() int {
	for {
		_ = unix.Pause() // returns only after a handled signal
	}
}
