// Package signals handles the signals that PID 1 receives. Some signals make PID 1 stop or reload. PID 1 forwards the others to
// the container's CMD.
//
// Signals can't kill PID 1, don't stay ignored in its children, and are not lost in a re-execution. The package starts a
// goroutine only for a reload.
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

// secondInterrupt is the time within which a second Ctrl-C stops the container. The first Ctrl-C is only forwarded to the CMD.
const secondInterrupt = 3 * time.Second

// Signals receives the signals to PID 1 and translates them into events for the supervisor.
type Signals struct {
	Children chan os.Signal // receives SIGCHLD
	Orders   chan os.Signal // receives the signals that hinit acts on, see Event

	faults    <-chan os.Signal // wakes ReportFaults when a fault signal such as SIGSEGV was ignored, see [proc.IgnoreSentFaults]
	cmd, tty  bool
	reload    func()
	during    func() string
	interrupt time.Time // time of the last Ctrl-C that was forwarded
}

// fatalSignals are the signals that hinit does not act on, but that would kill or stop PID 1 by default.
var fatalSignals = []os.Signal{unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN}

// Listen installs a handler for every signal that hinit acts on, and for the signals that would kill or stop this process. It
// does not ignore any of them, because exec resets only handled signals to their defaults. An ignored signal would stay ignored
// in the children.
func Listen() *Signals {
	s := &Signals{Children: make(chan os.Signal, 1), Orders: early.Orders(), faults: proc.IgnoreSentFaults()}
	signal.Notify(s.Children, unix.SIGCHLD)
	proc.RestoreIgnoredSignals()
	signal.Notify(make(chan os.Signal, 1), fatalSignals...)
	return s
}

// Configure sets the effects of the signals. cmd reports whether the container has a CMD, and tty whether standard input is the
// controlling terminal. On SIGHUP, reload may be called in a new goroutine. The result of during follows the name of the signal
// in the reason for a stop. Call Configure before the supervisor's loop runs.
func (s *Signals) Configure(cmd, tty bool, reload func(), during func() string) {
	s.cmd, s.tty, s.reload, s.during = cmd, tty, reload, during
}

// Event translates a signal to an event for the supervisor. It returns nil if the signal has no effect. The supervisor's
// loop calls Event.
func (s *Signals) Event(got os.Signal) supervisor.Event {
	sig, _ := got.(syscall.Signal)
	switch {
	case sig == unix.SIGTERM, sig == unix.SIGPWR, sig == early.Shutdown,
		sig == unix.SIGHUP && s.tty, // the terminal is gone
		sig == unix.SIGINT && time.Since(s.interrupt) < secondInterrupt,
		!s.cmd && (sig == unix.SIGINT || sig == unix.SIGQUIT):
		return supervisor.Shutdown{Reason: "received " + unix.SignalName(sig) + s.during()}
	case sig == unix.SIGINT:
		s.interrupt = time.Now()
	case sig == unix.SIGHUP && !s.cmd:
		guard.Go("reloading the configuration", s.reload)
	}
	if !s.cmd {
		return nil
	}
	return supervisor.Forward{Name: units.CmdName, Signal: int(sig)}
}

// LastInterrupt returns the time at which the last Ctrl-C was forwarded to the CMD. Like SetLastInterrupt, it is called in the
// supervisor's loop.
func (s *Signals) LastInterrupt() time.Time { return s.interrupt }

// SetLastInterrupt restores the time that LastInterrupt returned before a re-execution.
func (s *Signals) SetLastInterrupt(at time.Time) { s.interrupt = at }

// Handled returns the signals that have a handler, except SIGCHLD.
func Handled() (all []syscall.Signal) {
	for _, s := range append(early.InitSignals(), fatalSignals...) {
		if n, is := s.(syscall.Signal); is {
			all = append(all, n)
		}
	}
	return all
}

// TakePending removes and returns the signals that were delivered to this process but not handled yet, so that a re-execution does
// not lose them.
func (s *Signals) TakePending() (late []syscall.Signal) {
	idle := make(chan os.Signal, 1)
	signal.Notify(idle, early.InitSignals()...)
	signal.Stop(idle) // returns when no signal is on its way to a channel
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

// PutBack returns the signals from [Signals.TakePending] to the queue, after a failed re-execution or in the next program.
func (s *Signals) PutBack(late []syscall.Signal) {
	for _, sig := range late {
		select {
		case s.Orders <- sig:
		default: // the queue is already full of later signals
		}
	}
}

// tellPause is the minimum time between two reports of ignored signals.
const tellPause = 10 * time.Second

// ReportFaults reports fault signals, such as SIGSEGV, that another process sent and PID 1 ignored. It returns when ctx ends.
func (s *Signals) ReportFaults(ctx context.Context, tell func(text string)) {
	told := make(map[syscall.Signal]uint64)
	for {
		if !pause.Until(ctx, s.faults) {
			return
		}
		if text := faultsText(proc.SentFaults(), told); text != "" {
			tell(text)
		}
		if !pause.For(ctx, tellPause) {
			return
		}
	}
}

// faultsText describes the signals since the last report. told holds the number of signals already reported for each signal, and
// is updated.
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
