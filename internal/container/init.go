package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/container/signals"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// The exit codes of an init that does not begin; the command line has the same (docs/reference/exit-codes.md).
const (
	exitFailed = 1
	exitUsage  = 2
)

// syncTime is how long the CMD waits for what hinit has said before it.
const syncTime = 300 * time.Millisecond

// flushTime is how long the end of the container waits for the logs after the last process is gone.
const flushTime = 700 * time.Millisecond

// Main is the init of a container. It blocks until the container ends and returns its exit code. argv0 is the name it was called
// by, args what follows it.
func Main(argv0 string, args []string) int {
	first, code, over := beginInit(args)
	if over {
		return code
	}
	cfg, err := registry.LoadConfig(config.Options{Env: os.LookupEnv})
	if err != nil {
		return initlog.Refuse(exitUsage, err)
	}
	agent, err := boot.SettleAgent(cfg)
	if err != nil {
		return initlog.Refuse(exitFailed, err)
	}
	if err := boot.Admit(os.Geteuid(), agent.User.UID, agent.Known, os.LookupEnv); err != nil {
		initlog.Farewell(exitFailed, err)
		fmt.Fprintln(os.Stderr, err)
		return exitFailed
	}
	wd, err := os.Getwd()
	if err != nil {
		wd = "/"
	}
	route := boot.RouteCommand(boot.CommandLine{
		Argv0: argv0, Args: args, Agent: cfg.Agent.Binary, Own: cfg.Image.Subcommands, Env: os.LookupEnv, Look: boot.Lookup(personality.Path(cfg.Home), wd),
	})
	return first.live(cfg, agent, args, route)
}

// firstImage is the program of a container that begins: nothing was handed over to it.
type firstImage struct {
	sig      *signals.Signals
	threads  func() // returns when the threads are there that services must not take the place of
	normalGC func() // ends the boot's own pace of garbage collection
}

// beginInit is what every init does first. over says that this image could not begin, or took over and came to the container's end.
// code is the exit code then.
func beginInit(args []string) (first firstImage, code int, over bool) {
	// The Go runtime would end the process on a signal without a handler. Package early handles the signals that mean the end
	// already.
	first.sig = signals.Listen()
	taken, none := reexec.Take()
	tuning.InheritNothing()
	tuning.LimitMemory()
	var err error
	if first.threads, err = tuning.MakeThreads(taken.Threads()); err != nil {
		return first, initlog.Refuse(exitFailed, err), true
	}
	if !errors.Is(none, reexec.ErrNone) {
		first.threads()
		taken.Stood = taken.Halted.Resume()
		return first, successorMain(args, first.sig, taken, none), true
	}
	first.normalGC = tuning.RelaxGC()
	return first, 0, false
}

// live makes the container, boots it, and blocks until it ends. It makes everything before it touches anything that could hang.
func (f firstImage) live(cfg *config.Config, agent boot.Agent, args []string, route boot.Route) int {
	procs, err := proc.New()
	if err != nil {
		return initlog.Refuse(exitFailed, err)
	}
	c, err := assemble(cfg, agent, args, route, f.sig, procs)
	if err != nil {
		return initlog.Refuse(exitFailed, err)
	}
	return c.life(func(ctx context.Context) {
		defer f.normalGC()
		c.bootUp(ctx, f.threads)
	})
}

// life lasts as long as the container, from the beginning of this image.
func (c *container) life(begin func(context.Context)) int {
	code := c.run(begin)
	if c.route.Load().HasCommand() && proc.IsTerminal(os.Stdin) && os.Getpid() != 1 {
		_ = proc.TakeTerminal(os.Stdin) // the shell that started hinit wants it back
	}
	return code
}

// run is the life of the container.
func (c *container) run(begin func(context.Context)) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	reported := make(chan struct{})
	guard.Go("reporting", func() {
		defer close(reported)
		c.reporter.Run(ctx)
	})
	c.logs.Runs.Attach(c.registry)
	guard.Go("booting", func() { begin(ctx) })
	guard.Go("telling of sent signals", func() { c.signals.TellFaults(ctx, func(text string) { c.loop.Post(supervisor.Remark{Text: text}) }) })
	c.faults()
	code := c.loop.Run()
	noted := c.keeper.NoteStop()
	<-reported // it ends by itself when the loop has

	cancel(errors.New("the container has stopped"))
	flush, done := context.WithTimeout(context.Background(), flushTime)
	defer done()
	c.control.Close(flush)
	if err := c.logs.Close(flush); err != nil {
		initlog.Stderr(err)
	}
	select {
	case <-noted:
	case <-flush.Done():
	}
	if c.generation.Failed() {
		code = reexec.ExitFault
	}
	c.Logger.End(code)
	return code
}

// controls says whether a file is the controlling terminal of this process.
func controls(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // ENOTTY also for another terminal (tty_ioctl(4))
	return err == nil
}

// look runs what reads files outside the volume, in its turn: a disk may hang.
func look(f func()) {
	_ = blocking.Do(blocking.Foreign, func() error {
		f()
		return nil
	})
}

// hereConfig is the file that hinit run reads when no other one is named.
const hereConfig = "hinit.yaml"

// Plain is the init that supervises the services of a file and nothing else, "" for the usual places. It blocks until they are
// stopped, and returns the exit code of the process.
func Plain(file string) int {
	first, code, over := beginInit(nil)
	if over {
		return code
	}
	file, err := plainFile(file)
	if err != nil {
		return initlog.Refuse(exitUsage, err)
	}
	cfg, err := registry.LoadConfig(config.Options{Path: file, Plain: true, Env: os.LookupEnv})
	if err != nil {
		return initlog.Refuse(exitUsage, err)
	}
	if len(cfg.Services) == 0 {
		return initlog.Refuse(exitUsage, config.NoServices(cfg.Path))
	}
	return first.live(cfg, boot.Caller(), nil, boot.Route{Plain: true})
}

// plainFile is the path of the configuration of a plain supervisor, absolute where a reload would look for it elsewhere.
func plainFile(named string) (file string, err error) {
	switch {
	case named != "":
		file = named
	case os.Getenv("HINIT_CONFIG") != "":
		file = os.Getenv("HINIT_CONFIG")
	default:
		file = hereConfig
		look(func() { _, err = os.Stat(file) })
		if errors.Is(err, os.ErrNotExist) {
			file = config.DefaultPath
			look(func() { _, err = os.Stat(file) })
		}
		if errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("cannot run the services: there is no %s here and no %s; name a file: hinit run -c FILE", hereConfig, config.DefaultPath)
		}
	}
	return filepath.Abs(file)
}
