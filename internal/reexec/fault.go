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
	// ExitFault is the container's exit code when hinit can't continue after its own panic (EX_SOFTWARE of sysexits(3)).
	ExitFault = 70
	// faultWindow is the time after a fault in which a second fault ends the container.
	faultWindow = time.Minute
	// reportTime is the maximum time that hinit waits until the report of a fault is written to the console and the disk.
	reportTime = time.Second
)

// Panicked handles a panic in any goroutine except the supervisor's. The goroutine that panicked calls it. Panicked re-executes
// hinit, which starts the goroutine again in the new program. If that is impossible, it shuts down the container.
func (g *Generation) Panicked(doing string, value any, stack []byte) {
	if !g.handlingFault.CompareAndSwap(false, true) {
		return // another fault is already being handled
	}
	g.writeReport(doing, value, stack)
	err := g.countFault()
	if err == nil {
		over := false
		err = retryWhileFewPIDs(func() error {
			over, err = g.replaceProgram(Self, faultCause(doing), true, true)
			return err
		})
		if over {
			return
		}
	}
	g.giveUp(err)
	g.host.End(ExitFault, "hinit has a fault")
}

// SupervisorPanicked handles a panic of the supervisor's loop, in the loop's goroutine. It re-executes hinit. It returns only if
// that is impossible; the loop must not run again.
func (g *Generation) SupervisorPanicked(value any, stack []byte) {
	const doing = "supervising"
	g.handlingFault.Store(true)
	g.writeReport(doing, value, stack)
	err := g.countFault()
	if err == nil {
		err = retryWhileFewPIDs(func() error { return g.becomeProgram(Self, faultCause(doing), true, true) })
	}
	g.giveUp(err)
}

// retryWhileFewPIDs calls try, and returns its error. While too few PIDs are free for the new program's threads, it calls try
// again, for at most pidWaitLimit.
func retryWhileFewPIDs(try func() error) error {
	for end := time.Now().Add(pidWaitLimit); ; <-time.After(pidWaitLimit / 20) {
		if err := try(); !errors.Is(err, errTooFewPIDs) || time.Now().After(end) {
			return err
		}
	}
}

func faultCause(doing string) string { return "hinit had a fault while " + doing }

func (g *Generation) giveUp(err error) {
	fmt.Fprintf(os.Stderr, "[hinit] cannot go on: %v; stopping the container\n", err)
	g.shuttingDown.Store(true)
}

// countFault counts a fault. It returns an error if hinit must not re-execute itself after this fault.
func (g *Generation) countFault() error {
	now := time.Now()
	for _, at := range g.faults {
		if now.Sub(at) < faultWindow {
			return errors.New("hinit had another fault less than a minute ago")
		}
	}
	if !g.bootDone.Load() {
		return errors.New("the boot was not done")
	}
	g.faults = []time.Time{now}
	return nil
}

// writeReport writes the report of a fault to standard error and to a file. It waits for at most reportTime.
func (g *Generation) writeReport(doing string, value any, stack []byte) {
	now := time.Now()
	var b bytes.Buffer
	fmt.Fprintf(&b, "[hinit] panic while %s: %v\nhinit %s, image %d, pid %d, %s\n\n%s\nlast events:\n%s",
		doing, value, version.Get(), g.Number, os.Getpid(), now.Format(time.RFC3339Nano), stack, g.host.LastEvents())
	written := make(chan struct{}, 2)
	go func() { // without package guard, because a panic here could not be reported
		_, _ = os.Stderr.Write(b.Bytes()) // errors don't matter: hinit has no other place for the report
		written <- struct{}{}
	}()
	go func() {
		path, err := g.host.StoreReport("hinit-crash-"+now.UTC().Format("20060102T150405.000Z")+".log", b.Bytes())
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
