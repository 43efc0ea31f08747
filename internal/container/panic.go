package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/version"
	"hinit/supervisor"
)

const (
	// exitFault is the container's exit code when hinit could not go on after a fault of its own (EX_SOFTWARE of sysexits(3)).
	exitFault = 70
	// faultWindow is how soon after a first fault a second one ends the container.
	faultWindow = time.Minute
	// tellTime is how long the report of a fault may take to reach the console, and the disk.
	tellTime = time.Second
	// lastEvents is how many events a report shows.
	lastEvents = 50
)

var errTwice = errors.New("hinit had another fault less than a minute ago")

// panicked is told of a panic in any goroutine but the supervisor's loop. The goroutine that panicked is lost; hinit
// re-executes itself to be whole again.
func (c *container) panicked(doing string, value any, stack []byte) {
	if !c.images.broken.CompareAndSwap(false, true) {
		return // another one came first, and all begins anew
	}
	c.tell(doing, value, stack)
	err := c.mayGoOn()
	if err == nil {
		socket := c.leaveControl()
		if release, busy := c.holdS6(); busy == nil { // else it may be what has the fault
			defer release()
		}
		if asked := c.loop.Yield(context.Background(), func() { err = c.become(selfImage, faultCause(doing), socket, true) }); asked != nil {
			return // the container ends already
		}
		c.rejoinControl(socket)
	}
	fmt.Fprintf(os.Stderr, "[hinit] cannot go on: %v; stopping the container\n", err)
	c.images.failed.Store(true)
	c.loop.Post(supervisor.Shutdown{Code: exitFault, Reason: "hinit has a fault"})
}

// loopPanicked is told of a panic of the supervisor's loop, in its goroutine. It returns the exit code when there is nothing
// left to do.
func (c *container) loopPanicked(value any, stack []byte) int {
	const doing = "supervising"
	c.images.broken.Store(true)
	c.tell(doing, value, stack)
	err := c.mayGoOn()
	if err == nil {
		err = c.become(selfImage, faultCause(doing), c.detachControl(), true)
	}
	fmt.Fprintf(os.Stderr, "[hinit] cannot go on: %v; stopping the container\n", err)
	c.images.failed.Store(true)
	return lastStop(c.signals.children, c.cfg.Load().Shutdown.Budget)
}

func faultCause(doing string) string { return "hinit had a fault while " + doing }

// mayGoOn counts a fault and says why there can be no successor, if so.
func (c *container) mayGoOn() error {
	now := time.Now()
	for _, at := range c.images.faults {
		if now.Sub(at) < faultWindow {
			return errTwice
		}
	}
	if !c.images.settled.Load() {
		return errors.New("the boot was not done")
	}
	c.images.faults = []time.Time{now}
	return nil
}

// tell writes what is known of a fault to the container's standard error and to a file on the volume. Neither holds it up for
// long.
func (c *container) tell(doing string, value any, stack []byte) {
	now := time.Now()
	var b bytes.Buffer
	fmt.Fprintf(&b, "[hinit] panic while %s: %v\nhinit %s, image %d, pid %d, %s\n\n%s\nlast events:\n",
		doing, value, version.Get(), c.images.number, os.Getpid(), now.Format(time.RFC3339Nano), stack)
	newest := c.loop.History().Last()
	records, _ := c.loop.History().Since(newest - min(newest, lastEvents))
	for _, r := range records {
		fmt.Fprintf(&b, "%s  %s: ", r.At.Format("2006-01-02 15:04:05.000"), show.Line(r.Service))
		if r.From != r.To {
			fmt.Fprintf(&b, "%s → %s: ", r.From, r.To)
		}
		fmt.Fprintf(&b, "%s [pid %d]\n", show.Line(r.Reason), r.PID)
	}
	name := "hinit-crash-" + now.UTC().Format("20060102T150405.000Z") + ".log"
	dir := filepath.Join(c.cfg.Load().Home, "logs")
	written := make(chan struct{}, 2)
	go func() {
		_, _ = os.Stderr.Write(b.Bytes()) // there is nobody else to tell
		written <- struct{}{}
	}()
	go func() {
		err := c.keepReport(dir, name, b.Bytes())
		if err != nil {
			c.say("[hinit] cannot keep the report of the fault on the volume: %v", err)
		} else {
			c.say("[hinit] the report of the fault is in %s", filepath.Join(dir, name))
		}
		written <- struct{}{}
	}()
	patience := time.After(tellTime)
	for range cap(written) {
		select {
		case <-written:
		case <-patience:
			return
		}
	}
}

func (c *container) keepReport(dir, name string, report []byte) error {
	d, _, err := fsutil.MakeReal(dir, 0o755, c.agent.Actor.In(blocking.Volume))
	if err != nil {
		return err
	}
	defer d.Close()
	_, err = d.Append(name, report, 0o640)
	return err
}

// lastStop ends everything below this process without a supervisor: TERM, and at the end of the budget KILL. It returns the
// container's exit code.
func lastStop(children <-chan os.Signal, budget time.Duration) int {
	procs, err := proc.New()
	if err != nil {
		return exitFault
	}
	const afterKill = 500 * time.Millisecond
	procs.SignalRest(int(unix.SIGTERM))
	end := time.After(max(budget-afterKill, 0))
	for killed := false; !procs.Reap(false, func(proc.Exit) {}); {
		select {
		case <-children:
		case <-end:
			if killed {
				return exitFault
			}
			killed = true
			procs.SignalRest(int(unix.SIGKILL))
			end = time.After(afterKill)
		}
	}
	return exitFault
}
