package prepare

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// syncTime is how long the CMD waits for what hinit has said before it.
const syncTime = 300 * time.Millisecond

// StartCmd starts the container's CMD, if it has one.
func (s *Stage) StartCmd(ctx context.Context) {
	if !s.Route().HasCommand() {
		return
	}
	// The CMD writes to the console itself, so hinit's lines go first. A stuck console does not hold the CMD back.
	patience, done := context.WithTimeout(ctx, syncTime)
	_ = s.Logs.Sync(patience)
	done()
	s.start(ctx, s.Units.Cmd(s.Config(), s.Route(), Controls(os.Stdin)), "the CMD")
}

// StartStandIn starts the process that stands for a CMD "gateway run". An image without a sleep gets a copy of hinit, which is exe.
func (s *Stage) StartStandIn(ctx context.Context, exe string) {
	if s.Route().DashboardOnly {
		return
	}
	path, found := "", false
	look(func() { path, found = boot.Lookup(proc.Getenv(s.Units.Env(), "PATH"), "/")(units.StandInName) })
	if !found {
		path = exe
	}
	s.start(ctx, units.StandInUnit(path, s.Units.Env(), s.Agent.Cred), "the process that stands for the CMD")
}

func (s *Stage) start(ctx context.Context, u supervisor.Unit, what string) {
	if err := s.Registry.Register(ctx, u, supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		s.Warn("cannot start %s: %v", what, err)
	}
}

// Controls reports whether a file is the controlling terminal of this process.
func Controls(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // ENOTTY also for another terminal (tty_ioctl(4))
	return err == nil
}
