package container

import (
	"context"
	"errors"
	"os"
	"time"

	"hinit/internal/container/initlog"
	"hinit/internal/container/prepare"
	"hinit/internal/container/signals"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/s6/personality"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// logFlushTimeout is how long PID 1 waits for the logs after the last process of the container has ended.
const logFlushTimeout = 700 * time.Millisecond

// Main is the init of a container. It blocks until the container ends, and returns the exit code of the container. argv0 is
// the name under which the program was started, and args are its arguments.
//
// The calling goroutine must be locked to the main thread, and only waits there. The kernel wakes the main thread first for a
// signal to the process (complete_signal in Linux's kernel/signal.c). If that thread hung on a dead disk, hinit would not
// notice SIGTERM.
func Main(argv0 string, args []string) int {
	return runOffMainThread(func() (prepare.Input, int, bool) { return prepare.FromArgs(argv0, args, personality.AgentPath) })
}

// RunServicesOnly is an init that supervises only the services of a configuration file. If file is "", it looks in the usual
// places, see [prepare.FromFile]. It blocks until the services have been stopped, and returns the exit code. The calling
// goroutine must be locked to the main thread, as for [Main].
func RunServicesOnly(file string) int {
	return runOffMainThread(func() (prepare.Input, int, bool) { return prepare.FromFile(file) })
}

// runOffMainThread runs initMain in another goroutine and waits for its exit code. That goroutine can't run on the main
// thread, because the caller is locked to it.
func runOffMainThread(makeStart func() (start prepare.Input, code int, ok bool)) int {
	code := make(chan int)
	go func() { code <- initMain(makeStart) }()
	return <-code
}

// initMain is the common part of [Main] and [RunServicesOnly]. After a re-execution it continues the container of the previous
// program. Otherwise it boots the container from makeStart. It makes all parts of the container before the first call that
// could hang.
func initMain(makeStart func() (start prepare.Input, code int, ok bool)) int {
	// Without a handler, the Go runtime would end the process on a signal. Package early already handles the signals that ask
	// for a stop.
	sig := signals.Listen()
	handed, none := reexec.TakeState()
	tuning.LimitMemory()
	threads, err := tuning.MakeThreads(handed.Threads()) // services may use up the PIDs later, so make the threads now
	if err != nil {
		return initlog.ReportRefusal(prepare.ExitFailed, err)
	}
	if !errors.Is(none, reexec.ErrNoState) {
		threads()
		handed.FrozenFor = handed.Frozen.Thaw()
		return successorMain(sig, handed, none)
	}
	normalGC := tuning.RelaxGC()
	start, code, ok := makeStart()
	if !ok {
		return code
	}
	procs, err := proc.New()
	if err != nil {
		return initlog.ReportRefusal(prepare.ExitFailed, err)
	}
	c := newContainer(start, sig, procs)
	return c.runToEnd(func(ctx context.Context) {
		defer normalGC()
		c.bootUp(ctx, threads)
	})
}

// runToEnd runs the container to its end, and then makes hinit the foreground process group of its terminal again.
func (c *container) runToEnd(begin func(context.Context)) int {
	code := c.run(begin)
	if c.runPlan.Load().HasCommand() && proc.IsTerminal(os.Stdin) && os.Getpid() != 1 {
		_ = proc.TakeForeground(os.Stdin) // the shell that started hinit needs the terminal again
	}
	return code
}

// run calls begin, which boots or continues the container, in a goroutine, and runs the supervisor's loop to its end. Then it
// closes all parts of the container and returns the exit code.
func (c *container) run(begin func(context.Context)) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	reported := guard.GoWithDone("reporting", func() { c.reporter.Run(ctx) })
	c.logs.Runs.Attach(c.registry)
	guard.Go("booting", func() { begin(ctx) })
	guard.Go("telling of sent signals", func() { c.signals.ReportFaults(ctx, func(text string) { c.loop.Post(supervisor.Remark{Text: text}) }) })
	c.injectFaults()
	code := c.loop.Run()
	recorded := c.gateways.RecordStopDuration()
	<-reported // the reporter ends with the loop

	cancel(errors.New("the container has stopped"))
	flush, done := context.WithTimeout(context.Background(), logFlushTimeout)
	defer done()
	c.control.Close(flush)
	if err := c.logs.Close(flush); err != nil {
		initlog.WriteStderr(err)
	}
	pause.Until(flush, recorded)
	if c.generation.Failed() {
		code = reexec.ExitFault
	}
	c.Logger.End(code)
	return code
}
