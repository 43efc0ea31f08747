package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/account"
	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/container/units"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/supervisor"
)

// Exit codes of an init that can't begin. The command line uses the same codes (docs/reference/exit-codes.md).
const (
	ExitFailed = 1
	exitUsage  = 2
)

// Input contains the input for making the container: the configuration, the agent's user, and the meaning of the CMD.
type Input struct {
	Config  *config.Config
	Agent   boot.Agent
	RunPlan boot.RunPlan
}

// Handover is the part of an [Input] that the next program needs after a re-execution.
type Handover struct {
	ConfigPath string
	Config     []byte
	User       account.User
	Known      bool
	RunPlan    boot.RunPlan `reexec:"Route"`
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (s Input) HandOver() Handover {
	return Handover{s.Config.Path, s.Config.Content, s.Agent.User, s.Agent.InPasswd, s.RunPlan}
}

// TakeOver returns the Input for a program that takes over the state of the previous program.
func (old Handover) TakeOver() (start Input, err error) {
	if old.Config == nil {
		old.Config = []byte{}
	}
	cfg, err := config.Load(config.Options{Path: old.ConfigPath, Content: old.Config, ServicesOnly: old.RunPlan.ServicesOnly, Env: os.LookupEnv})
	if err != nil {
		return start, err
	}
	agent := boot.NewAgent(old.User, old.Known)
	if old.RunPlan.ServicesOnly {
		agent = boot.CallerAsAgent()
	}
	return Input{cfg, agent, old.RunPlan}, nil
}

// FromArgs returns the Input of a container's init. path returns the PATH of the agent's programs, given the agent's home. If
// the init can't begin, FromArgs prints the reason, and returns ok false with the exit code.
func FromArgs(argv0 string, args []string, path func(home string) string) (start Input, code int, ok bool) {
	cfg, err := registry.LoadConfig(config.Options{Env: os.LookupEnv})
	if err != nil {
		return start, initlog.ReportRefusal(exitUsage, err), false
	}
	agent, err := boot.ResolveAgent(cfg)
	if err != nil {
		return start, initlog.ReportRefusal(ExitFailed, err), false
	}
	if err := boot.CheckStartUser(os.Geteuid(), agent.User.UID, agent.InPasswd, os.LookupEnv); err != nil {
		initlog.WriteTermination(ExitFailed, err)
		fmt.Fprintln(os.Stderr, err)
		return start, ExitFailed, false
	}
	wd := "/"
	blocking.Run(blocking.Foreign, func() {
		if here, err := os.Getwd(); err == nil {
			wd = here
		}
	})
	return Input{cfg, agent, boot.PlanRun(boot.CommandLine{
		Argv0: argv0, Args: args, AgentBinary: cfg.Agent.Binary, Subcommands: cfg.Image.Subcommands, Env: os.LookupEnv, FindProgram: boot.CommandFinder(path(cfg.Home), wd),
	})}, 0, true
}

// FromFile returns the Input of an init that supervises only the services of a configuration file. For "" it takes the
// first of these: the file in HINIT_CONFIG, hinit.yaml in the working directory, [config.DefaultPath].
func FromFile(file string) (start Input, code int, ok bool) {
	file, err := findConfigFile(file)
	if err != nil {
		return start, initlog.ReportRefusal(exitUsage, err), false
	}
	cfg, err := registry.LoadConfig(config.Options{Path: file, ServicesOnly: true, Env: os.LookupEnv})
	if err == nil && len(cfg.Services) == 0 {
		err = config.NoServicesError(cfg.Path)
	}
	if err != nil {
		return start, initlog.ReportRefusal(exitUsage, err), false
	}
	return Input{Config: cfg, Agent: boot.CallerAsAgent(), RunPlan: boot.RunPlan{ServicesOnly: true}}, 0, true
}

// defaultConfigFile is the file that "hinit run" reads in the working directory if the user names none.
const defaultConfigFile = "hinit.yaml"

// findConfigFile returns the absolute path of the configuration of hinit run, so that a later reload finds the same file. named
// is the path from the user, or "".
func findConfigFile(named string) (file string, err error) {
	if file = cmp.Or(named, os.Getenv("HINIT_CONFIG")); file != "" {
		return filepath.Abs(file)
	}
	for _, file = range []string{defaultConfigFile, config.DefaultPath} {
		blocking.Run(blocking.Foreign, func() { _, err = os.Stat(file) })
		if !errors.Is(err, os.ErrNotExist) {
			return filepath.Abs(file)
		}
	}
	return "", fmt.Errorf("cannot run the services: there is no %s here and no %s; name a file: hinit run -c FILE", defaultConfigFile, config.DefaultPath)
}

// consoleSyncTimeout is how long the start of the CMD waits for earlier messages of hinit on the console.
const consoleSyncTimeout = 300 * time.Millisecond

// StartCmd starts the container's CMD. It does nothing if hinit supervises a gateway instead.
func (s *Preparer) StartCmd(ctx context.Context) {
	if !s.RunPlan().HasCommand() {
		return
	}
	// The CMD writes to the console itself, so write hinit's own lines first. A stuck console delays the CMD for
	// consoleSyncTimeout only.
	patience, done := context.WithTimeout(ctx, consoleSyncTimeout)
	_ = s.Logs.Sync(patience)
	done()
	s.startUnit(ctx, s.Units.Cmd(s.Config(), s.RunPlan(), IsControllingTerminal(os.Stdin)), "the CMD")
}

// StartPlaceholder starts a process in place of a CMD "gateway run", whose gateway hinit supervises as a service. The process
// is "sleep infinity", or hinit itself (exe) if the image has no sleep.
func (s *Preparer) StartPlaceholder(ctx context.Context, exe string) {
	if s.RunPlan().DashboardOnly {
		return
	}
	path, found := "", false
	blocking.Run(blocking.Foreign, func() { path, found = boot.CommandFinder(proc.Getenv(s.Units.Env(), "PATH"), "/")(units.PauseName) })
	if !found {
		path = exe
	}
	s.startUnit(ctx, units.PlaceholderUnit(path, s.Units.Env(), s.Agent.Cred), "the process that stands for the CMD")
}

func (s *Preparer) startUnit(ctx context.Context, u supervisor.Unit, description string) {
	if err := s.Registry.Register(ctx, u, supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		s.Warn("cannot start %s: %v", description, err)
	}
}

// IsControllingTerminal reports whether f is the controlling terminal of this process.
func IsControllingTerminal(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // fails with ENOTTY for any other terminal (tty_ioctl(4))
	return err == nil
}
