package container

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/backoff"
	"hinit/internal/boot"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// StandInName is argv[0] of the process that stands for a CMD "gateway run", and of hinit when it is that process.
const StandInName = "sleep"

// startStandIn starts what the image had in the place of a CMD "gateway run" (contract, section 3.1): "sleep infinity", whose
// parent has main-wrapper.sh in its command line. Tools that know the image look for it. It belongs to nobody and ends with
// the container. An image without a sleep gets a copy of hinit.
func (c *container) startStandIn(ctx context.Context) {
	if c.s6.Load() == nil || c.route.Load().DashboardOnly {
		return
	}
	path, found := "", false
	look(func() { path, found = boot.Lookup(proc.Getenv(*c.env.Load(), "PATH"), "/")(StandInName) })
	if !found {
		path = c.images.exe
	}
	u := supervisor.Unit{
		Name: cmdName, Kind: supervisor.KindStandIn,
		Policy: supervisor.Policy{
			Backoff:    backoff.Policy{Initial: time.Second, Max: time.Minute, Factor: 2},
			ResetAfter: time.Minute, StopSignal: int(unix.SIGTERM), Grace: time.Second,
		},
		Spec:  proc.Spec{Path: path, Argv: []string{StandInName, "infinity"}, Env: *c.env.Load(), Dir: "/", Cred: c.agent.Cred},
		Stdio: make([]*os.File, 3), // /dev/null
	}
	if err := c.register(ctx, u, supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.warn("cannot start the process that stands for the CMD: %v", err)
	}
}

// StandIn is that process. It does nothing until a signal ends it.
func StandIn() int {
	for {
		_ = unix.Pause() // it only ever fails, when a signal was handled
	}
}
