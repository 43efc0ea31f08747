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
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/internal/s6/personality"
	"hinit/internal/tuning"
	"hinit/supervisor"
)

// flushTime is how long the end of the container waits for the logs after the last process is gone.
const flushTime = 700 * time.Millisecond

// Main is the init of a container. It blocks until the container ends and returns its exit code. argv0 is the name it was called
// by, args what follows it.
func Main(argv0 string, args []string) int {
	return begin(args, func() (prepare.Start, int, bool) { return prepare.Container(argv0, args, personality.Path) })
}

// Plain is the init that supervises the services of a file and nothing else, "" for the usual places. It blocks until they are
// stopped, and returns the exit code of the process.
func Plain(file string) int {
	return begin(nil, func() (prepare.Start, int, bool) { return prepare.Plain(file) })
}

// begin does what every init does first, and then goes on for the image before this one, or makes and boots the container that settle
// describes. It makes everything before it touches anything that could hang.
func begin(args []string, settle func() (start prepare.Start, code int, ok bool)) int {
	// The Go runtime would end the process on a signal without a handler. Package early handles the signals that mean the end
	// already.
	sig := signals.Listen()
	taken, none := reexec.Take()
	tuning.InheritNothing()
	tuning.LimitMemory()
	threads, err := tuning.MakeThreads(taken.Threads()) // those that services must not take the place of
	if err != nil {
		return initlog.Refuse(prepare.ExitFailed, err)
	}
	if !errors.Is(none, reexec.ErrNone) {
		threads()
		taken.Stood = taken.Halted.Resume()
		return successorMain(args, sig, taken, none)
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
	c, err := assemble(start, sig, procs)
	if err != nil {
		return initlog.Refuse(prepare.ExitFailed, err)
	}
	return c.life(func(ctx context.Context) {
		defer normalGC()
		c.bootUp(ctx, threads)
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
