package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/early"
	"hinit/internal/guard"
	"hinit/internal/handover"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// The exit codes of an init that does not begin, those of the command line (docs/reference/exit-codes.md).
const (
	exitFailed = 1
	exitUsage  = 2
)

// syncTime is how long the CMD waits for what hinit has said before it.
const syncTime = 300 * time.Millisecond

// flushTime is how long the end of the container waits for the logs after the last process is gone.
const flushTime = 700 * time.Millisecond

// Main is the init of a container: it supervises until the container ends and returns the container's exit code. argv0 is the name
// it was called by, args what follows it.
func Main(argv0 string, args []string) int {
	sig, made, code, over := beginInit(args)
	if over {
		return code
	}
	collect := collectLater()
	cfg, err := loadConfig(config.Options{Env: os.LookupEnv})
	if err != nil {
		return refuse(exitUsage, err)
	}
	agent, err := boot.SettleAgent(cfg)
	if err != nil {
		return refuse(exitFailed, err)
	}
	if err := boot.Admit(os.Geteuid(), agent.User.UID, agent.Known, os.LookupEnv); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	wd, err := os.Getwd()
	if err != nil {
		wd = "/"
	}
	route := boot.RouteCommand(boot.CommandLine{
		Argv0: argv0, Args: args, Agent: cfg.Agent.Binary, Env: os.LookupEnv, Look: boot.Lookup(initPath(cfg.Home), wd),
	})
	c, err := newContainer(cfg, agent, args, route, sig)
	if err != nil {
		return refuse(exitFailed, err)
	}
	return c.life(func(ctx context.Context) {
		defer collect()
		c.bootUp(ctx, made)
	})
}

// beginInit is what every init does before anything else. When it says that all is over, this image could not begin, or took over from
// another one and has come to the container's end; code is the exit code then.
func beginInit(args []string) (sig signals, made func(), code int, over bool) {
	// The Go runtime would end the process on a signal that nobody asked for. What tells it to end is listened to already, see package
	// early.
	sig = listen()
	taken, err := handover.Take()
	keepDescriptors()
	made, few := makeThreads()
	if few != nil {
		return sig, nil, refuse(exitFailed, few), true
	}
	if !errors.Is(err, handover.ErrNone) {
		made()
		return sig, nil, successorMain(args, sig, taken, err), true
	}
	return sig, made, 0, false
}

// life is that of the container, from the beginning of this image to the end.
func (c *container) life(begin func(context.Context)) int {
	code := c.run(begin)
	if c.route.Load().HasCommand() && proc.IsTerminal(os.Stdin) && os.Getpid() != 1 {
		_ = proc.TakeTerminal(os.Stdin) // the shell that started hinit wants it back
	}
	return code
}

func refuse(code int, err error) int {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(os.Stderr, "[hinit]", show.Line(strings.TrimSuffix(line, "\n")))
	}
	return code
}

// signals are the channels signals arrive on.
type signals struct {
	children chan os.Signal
	orders   chan os.Signal
	faults   <-chan os.Signal // after a signal that was sent as if for a fault
}

// listen handles every signal that means something, and those that would end this process or stay ignored in its
// children: a handled signal is back to its default after exec, an ignored one is not.
func listen() signals {
	s := signals{children: make(chan os.Signal, 1), orders: early.Orders(), faults: proc.IgnoreSentFaults()}
	signal.Notify(s.children, unix.SIGCHLD)
	proc.Unignore()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN)
	return s
}

// secondInterrupt is how soon after a first Ctrl-C another one no longer goes to the CMD but stops the container.
const secondInterrupt = 3 * time.Second

// interpreter says what a signal to the init means.
type interpreter struct {
	cmd       bool // there is a CMD
	tty       bool // standard input is the controlling terminal
	reload    func()
	interrupt time.Time // the last one passed on
}

// event is called in the supervisor's loop.
func (i *interpreter) event(s os.Signal) supervisor.Event {
	sig, _ := s.(syscall.Signal)
	stop := supervisor.Shutdown{Reason: "received " + unix.SignalName(sig)}
	switch sig { //nolint:exhaustive // every other signal is passed on
	case unix.SIGTERM, unix.SIGPWR, early.Shutdown:
		return stop
	case unix.SIGINT:
		if !i.cmd || time.Since(i.interrupt) < secondInterrupt {
			return stop
		}
		i.interrupt = time.Now()
	case unix.SIGQUIT:
		if !i.cmd {
			return stop
		}
	case unix.SIGHUP:
		switch {
		case i.tty: // the terminal is gone
			return stop
		case !i.cmd:
			guard.Go("reloading the configuration", i.reload)
			return nil
		}
	}
	if !i.cmd {
		return nil
	}
	return supervisor.Forward{Name: cmdName, Signal: int(sig)}
}

// run is the life of the container.
func (c *container) run(begin func(context.Context)) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	reported := make(chan struct{})
	guard.Go("reporting", func() {
		defer close(reported)
		c.report(ctx)
	})
	guard.Go("booting", func() { begin(ctx) })
	guard.Go("telling of sent signals", func() { c.tellOfSentFaults(ctx) })
	c.faults()
	code := c.loop.Run()
	<-reported // it ends by itself when the loop has

	cancel(errors.New("the container has stopped"))
	flush, done := context.WithTimeout(context.Background(), flushTime)
	defer done()
	c.closeControl(flush)
	if err := c.logs.Close(flush); err != nil {
		fmt.Fprintln(os.Stderr, "[hinit]", show.Text(err.Error()))
	}
	c.releaseLease()
	if c.images.failed.Load() {
		return exitFault
	}
	return code
}

// controls says whether a file is the controlling terminal of this process. A terminal may be anybody else's, or nobody's, such as
// the console of a machine.
func controls(f *os.File) bool {
	_, err := unix.IoctlGetInt(int(f.Fd()), unix.TIOCGPGRP) // ENOTTY also for another terminal (tty_ioctl(4))
	return err == nil
}
