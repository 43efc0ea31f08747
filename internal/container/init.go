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

// flushTime limits how long PID 1 waits for the logs to be written after the last process of the container has ended.
const flushTime = 700 * time.Millisecond

// Main runs the init of a container. It blocks until the container ends and returns its exit code. argv0 is the name of the
// program, args are its arguments.
//
// The caller's goroutine must be locked to the main thread. Main only waits on this thread, because the kernel wakes the
// main thread before any other for a signal to the process (complete_signal in Linux's kernel/signal.c). If the main thread
// hung in a call to a dead disk, SIGTERM would not be noticed.
func Main(argv0 string, args []string) int {
	return begin(func() (prepare.Start, int, bool) { return prepare.Container(argv0, args, personality.Path) })
}

// RunServicesOnly runs an init that supervises only the services of a configuration file. If file is "", it searches the usual
// places, see [prepare.ServicesOnly]. RunServicesOnly blocks until the services are stopped, and returns the exit code of the
// process. The caller's goroutine must be locked to the main thread, as for [Main].
func RunServicesOnly(file string) int {
	return begin(func() (prepare.Start, int, bool) { return prepare.ServicesOnly(file) })
}

// begin runs initMain in another goroutine and waits for its exit code. That goroutine can't get the main thread, because the
// caller's goroutine is locked to it.
func begin(settle func() (start prepare.Start, code int, ok bool)) int {
	code := make(chan int)
	go func() { code <- initMain(settle) }()
	return <-code
}

// initMain is the common part of [Main] and [RunServicesOnly]. After a re-execution it continues the container of the previous
// program. Otherwise it builds and boots the container that settle describes. It builds everything before it makes any call that
// could hang.
func initMain(settle func() (start prepare.Start, code int, ok bool)) int {
	// Without a handler the Go runtime would end the process on a signal. Package early already handles the signals that ask for
	// a stop.
	sig := signals.Listen()
	taken, none := reexec.Take()
	tuning.LimitMemory()
	threads, err := tuning.MakeThreads(taken.Threads()) // created now, because services may use up the PID limit later
	if err != nil {
		return initlog.Refuse(prepare.ExitFailed, err)
	}
	if !errors.Is(none, reexec.ErrNone) {
		threads()
		taken.HaltedFor = taken.Halted.Resume()
		return successorMain(sig, taken, none)
	}
	normalGC := tuning.RelaxGC()
	start, code, ok := settle()
	if !ok {
		return code
	}
	procs, err := proc.New()
	if err != nil {
		return initlog.Refuse(prepare.ExitFailed, err)
	}
	c := assemble(start, sig, procs)
	return c.runToEnd(func(ctx context.Context) {
		defer normalGC()
		c.bootUp(ctx, threads)
	})
}

// runToEnd runs the container until its end. Then it makes hinit the foreground process group of the terminal again.
func (c *container) runToEnd(begin func(context.Context)) int {
	code := c.run(begin)
	if c.route.Load().HasCommand() && proc.IsTerminal(os.Stdin) && os.Getpid() != 1 {
		_ = proc.TakeForeground(os.Stdin) // the CMD had the terminal; the shell that started hinit needs the terminal again
	}
	return code
}

// run calls begin in a goroutine, which boots or resumes the container. It runs the supervisor's loop until the loop ends. Then
// it closes all parts of the container, and returns the exit code.
func (c *container) run(begin func(context.Context)) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	reported := make(chan struct{})
	guard.Go("reporting", func() {
		defer close(reported)
		c.reporter.Run(ctx)
	})
	c.logs.Runs.Attach(c.registry)
	guard.Go("booting", func() { begin(ctx) })
	guard.Go("telling of sent signals", func() { c.signals.ReportFaults(ctx, func(text string) { c.loop.Post(supervisor.Remark{Text: text}) }) })
	c.faults()
	code := c.loop.Run()
	noted := c.gateways.NoteStop()
	<-reported // the reporter ends when the loop has ended

	cancel(errors.New("the container has stopped"))
	flush, done := context.WithTimeout(context.Background(), flushTime)
	defer done()
	c.control.Close(flush)
	if err := c.logs.Close(flush); err != nil {
		initlog.Stderr(err)
	}
	pause.Until(flush, noted)
	if c.generation.Failed() {
		code = reexec.ExitFault
	}
	c.Logger.End(code)
	return code
}
