package prepare

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// syncTime limits how long the CMD waits until hinit's earlier messages are written.
const syncTime = 300 * time.Millisecond

// StartCmd starts the container's CMD, if the container has one.
func (s *Stage) StartCmd(ctx context.Context) {
	if !s.Route().HasCommand() {
		return
	}
	// The CMD writes to the console itself, so write hinit's pending lines first. A stuck console delays the CMD only for syncTime.
	patience, done := context.WithTimeout(ctx, syncTime)
	_ = s.Logs.Sync(patience)
	done()
	s.start(ctx, s.Units.Cmd(s.Config(), s.Route(), Controls(os.Stdin)), "the CMD")
}

// StartStandIn starts the process that stands in for a CMD "gateway run": hinit supervises that gateway as a service. The process
// is "sleep infinity", or hinit itself (exe) if the image has no sleep.
func (s *Stage) StartStandIn(ctx context.Context, exe string) {
	if s.Route().DashboardOnly {
		return
	}
	path, found := "", false
	blocking.Run(blocking.Foreign, func() { path, found = boot.CommandFinder(proc.Getenv(s.Units.Env(), "PATH"), "/")(units.StandInName) })
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
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // ENOTTY for any other terminal (tty_ioctl(4))
	return err == nil
}
