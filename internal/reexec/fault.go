package reexec

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"hinit/internal/version"
)

const (
	// ExitFault is the container's exit code when hinit could not go on after a fault of its own (EX_SOFTWARE of sysexits(3)).
	ExitFault = 70
	// faultWindow is how soon after a first fault a second one ends the container.
	faultWindow = time.Minute
	// reportTime is how long the report of a fault may take to reach the console, and the disk.
	reportTime = time.Second
)

// Panicked handles a panic in any goroutine but the supervisor's, in that goroutine. hinit re-executes itself to have that
// goroutine again.
func (g *Generation) Panicked(doing string, value any, stack []byte) {
	if !g.broken.CompareAndSwap(false, true) {
		return // another one came first, and all begins anew
	}
	g.report(doing, value, stack)
	err := g.mayGoOn()
	if err == nil {
		over := false
		err = awaitRoom(func() error {
			over, err = g.replace(Self, faultCause(doing), true, true)
			return err
		})
		if over {
			return
		}
	}
	g.giveUp(err)
	g.host.End(ExitFault, "hinit has a fault")
}

// SupervisorPanicked is told of a panic of the supervisor, in its goroutine. When it returns, no loop supervises any more.
func (g *Generation) SupervisorPanicked(value any, stack []byte) {
	const doing = "supervising"
	g.broken.Store(true)
	g.report(doing, value, stack)
	err := g.mayGoOn()
	if err == nil {
		err = awaitRoom(func() error { return g.become(Self, faultCause(doing), true, true) })
	}
	g.giveUp(err)
}

// awaitRoom tries to become another program again while only room for it is missing.
func awaitRoom(try func() error) error {
	for end := time.Now().Add(roomTime); ; <-time.After(roomTime / 20) {
		if err := try(); !errors.Is(err, errNoRoom) || time.Now().After(end) {
			return err
		}
	}
}

func faultCause(doing string) string { return "hinit had a fault while " + doing }

func (g *Generation) giveUp(err error) {
	fmt.Fprintf(os.Stderr, "[hinit] cannot go on: %v; stopping the container\n", err)
	g.failed.Store(true)
}

// mayGoOn counts a fault and says why there can be no successor, if so.
func (g *Generation) mayGoOn() error {
	now := time.Now()
	for _, at := range g.faults {
		if now.Sub(at) < faultWindow {
			return errors.New("hinit had another fault less than a minute ago")
		}
	}
	if !g.settled.Load() {
		return errors.New("the boot was not done")
	}
	g.faults = []time.Time{now}
	return nil
}

// report writes what is known of a fault to standard error and to a file. Neither holds it up for long.
func (g *Generation) report(doing string, value any, stack []byte) {
	now := time.Now()
	var b bytes.Buffer
	fmt.Fprintf(&b, "[hinit] panic while %s: %v\nhinit %s, image %d, pid %d, %s\n\n%s\nlast events:\n%s",
		doing, value, version.Get(), g.Number, os.Getpid(), now.Format(time.RFC3339Nano), stack, g.host.LastEvents())
	written := make(chan struct{}, 2)
	go func() { // no panic of these two is of use to anybody
		_, _ = os.Stderr.Write(b.Bytes()) // there is no other place to report to
		written <- struct{}{}
	}()
	go func() {
		path, err := g.host.Keep("hinit-crash-"+now.UTC().Format("20060102T150405.000Z")+".log", b.Bytes())
		if err != nil {
			g.host.Say(fmt.Sprintf("[hinit] cannot keep the report of the fault on the volume: %v", err))
		} else {
			g.host.Say("[hinit] the report of the fault is in " + path)
		}
		written <- struct{}{}
	}()
	patience := time.After(reportTime)
	for range cap(written) {
		select {
		case <-written:
		case <-patience:
			return
		}
	}
}
