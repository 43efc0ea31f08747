// Package signals says what a signal to PID 1 means: to stop, to read the configuration again, or one for the container's CMD.
//
// It promises that no signal ends PID 1 or stays ignored in its children, and that none is lost from one image to the next. Its
// only goroutine runs [Signals.TellFaults].
package signals

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/container/units"
	"hinit/internal/early"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// secondInterrupt is how soon after a first Ctrl-C another one no longer goes to the CMD but stops the container.
const secondInterrupt = 3 * time.Second

// Signals are those that PID 1 gets.
type Signals struct {
	Children chan os.Signal // SIGCHLD
	Orders   chan os.Signal // those that mean something

	faults    <-chan os.Signal // after a signal that was sent as if for a fault
	cmd, tty  bool
	reload    func()
	interrupt time.Time // the last Ctrl-C that was passed on
}

// ended are signals that would end PID 1 or stop it, and mean nothing to it.
var ended = []os.Signal{unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN}

// Listen handles every signal that means something, and those that would end this process. exec sets a handled signal to its
// default, an ignored one not.
func Listen() *Signals {
	s := &Signals{Children: make(chan os.Signal, 1), Orders: early.Orders(), faults: proc.IgnoreSentFaults()}
	signal.Notify(s.Children, unix.SIGCHLD)
	proc.Unignore()
	signal.Notify(make(chan os.Signal, 1), ended...)
	return s
}

// Mean settles what signals mean: cmd says that there is a CMD, tty that standard input is the controlling terminal. SIGHUP calls
// reload in a goroutine of its own. It must be called before the supervisor's loop runs.
func (s *Signals) Mean(cmd, tty bool, reload func()) { s.cmd, s.tty, s.reload = cmd, tty, reload }

// Event is what a signal is to the supervisor, nil for nothing. The supervisor's loop calls it.
func (s *Signals) Event(got os.Signal) supervisor.Event {
	sig, _ := got.(syscall.Signal)
	stop := supervisor.Shutdown{Reason: "received " + unix.SignalName(sig)}
	switch sig { //nolint:exhaustive // every other signal is passed on
	case unix.SIGTERM, unix.SIGPWR, early.Shutdown:
		return stop
	case unix.SIGINT:
		if !s.cmd || time.Since(s.interrupt) < secondInterrupt {
			return stop
		}
		s.interrupt = time.Now()
	case unix.SIGQUIT:
		if !s.cmd {
			return stop
		}
	case unix.SIGHUP:
		switch {
		case s.tty: // the terminal is gone
			return stop
		case !s.cmd:
			guard.Go("reloading the configuration", s.reload)
			return nil
		}
	}
	if !s.cmd {
		return nil
	}
	return supervisor.Forward{Name: units.CmdName, Signal: int(sig)}
}

// Interrupt is when the last Ctrl-C was passed on to the CMD. The supervisor's loop calls it, like SetInterrupt.
func (s *Signals) Interrupt() time.Time { return s.interrupt }

// SetInterrupt is for a program that goes on for another one.
func (s *Signals) SetInterrupt(at time.Time) { s.interrupt = at }

// Handled are the signals that have a handler, besides SIGCHLD.
func Handled() (all []syscall.Signal) {
	for _, s := range append(early.Meaningful(), ended...) {
		if n, is := s.(syscall.Signal); is {
			all = append(all, n)
		}
	}
	return all
}

// TakeLate takes the signals that have come and were not acted upon.
func (s *Signals) TakeLate() (late []syscall.Signal) {
	idle := make(chan os.Signal, 1)
	signal.Notify(idle, early.Meaningful()...)
	signal.Stop(idle) // returns when no signal is on its way to a channel any more
	for {
		select {
		case sig := <-s.Orders:
			if n, is := sig.(syscall.Signal); is {
				late = append(late, n)
			}
		default:
			return late
		}
	}
}

// PutBack puts signals back that [Signals.TakeLate] took.
func (s *Signals) PutBack(late []syscall.Signal) {
	for _, sig := range late {
		select {
		case s.Orders <- sig:
		default: // so many others have come since
		}
	}
}

// tellPause is how long a second report of ignored signals comes after a first, however many come meanwhile.
const tellPause = 10 * time.Second

// TellFaults reports the signals that a process sent as if this one had a fault, and that PID 1 ignored. It returns when ctx ends.
func (s *Signals) TellFaults(ctx context.Context, tell func(text string)) {
	told := make(map[syscall.Signal]uint64)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.faults:
		}
		if text := faultsText(proc.SentFaults(), told); text != "" {
			tell(text)
		}
		if !pause.For(ctx, tellPause) {
			return
		}
	}
}

// faultsText describes what has come since it was told, and notes it as told.
func faultsText(faults []proc.SentFault, told map[syscall.Signal]uint64) string {
	var what []string
	for _, f := range faults {
		n := f.Count - told[f.Signal]
		if n == 0 {
			continue
		}
		told[f.Signal] = f.Count
		word := fmt.Sprintf("%d %s", n, cmp.Or(unix.SignalName(f.Signal), f.Signal.String()))
		if f.UID >= 0 {
			word += fmt.Sprintf(" (last from pid %d, uid %d)", f.PID, f.UID)
		}
		what = append(what, word)
	}
	if len(what) == 0 {
		return ""
	}
	return "ignored signals that a process sent to hinit: " + strings.Join(what, ", ")
}
