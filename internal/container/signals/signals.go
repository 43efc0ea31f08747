// Package signals handles the signals to PID 1. Some of them stop the container or reload the configuration. The others are
// forwarded to the container's CMD.
//
// No signal kills PID 1 or gets lost in a re-execution, and children do not inherit ignored signals. The package starts a
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

// doubleInterruptWindow is how soon after a first Ctrl-C a second one stops the container. The first one goes only to the CMD.
const doubleInterruptWindow = 3 * time.Second

// Signals receives the signals to PID 1 and turns them into events for the supervisor.
type Signals struct {
	SIGCHLD  chan os.Signal // channel that delivers SIGCHLD
	Incoming chan os.Signal // channel that delivers the signals on which hinit acts, see Event

	// channel that wakes ReportFaults after a fault signal such as SIGSEGV was ignored, see [proc.IgnoreSentFaults]
	faultSignals   <-chan os.Signal
	hasCmd, hasTTY bool
	reload         func()
	bootHookText   func() string
	lastInterrupt  time.Time // when a Ctrl-C was last forwarded
}

// fatalSignals are signals on which hinit does not act, but which would kill or stop PID 1 by default.
var fatalSignals = []os.Signal{unix.SIGPIPE, unix.SIGTTOU, unix.SIGTTIN}

// Listen installs a handler for every signal on which hinit acts, and for signals that would otherwise kill or stop PID 1. It
// ignores no signal, because children would inherit that: execve(2) resets only signals with a handler.
func Listen() *Signals {
	s := &Signals{SIGCHLD: make(chan os.Signal, 1), Incoming: early.InitSignalChannel(), faultSignals: proc.IgnoreSentFaults()}
	signal.Notify(s.SIGCHLD, unix.SIGCHLD)
	proc.RestoreIgnoredSignals()
	signal.Notify(make(chan os.Signal, 1), fatalSignals...)
	return s
}

// Configure sets what the signals do. cmd means that the container has a CMD, and tty that standard input is the controlling
// terminal. SIGHUP may call reload in a new goroutine. during returns text to append to the reason for a stop, such as the
// running hook. Call Configure before the supervisor's loop runs.
func (s *Signals) Configure(cmd, tty bool, reload func(), during func() string) {
	s.hasCmd, s.hasTTY, s.reload, s.bootHookText = cmd, tty, reload, during
}

// Event returns the supervisor's event for a signal, or nil if the signal has no effect. The supervisor's loop calls it.
func (s *Signals) Event(got os.Signal) supervisor.Event {
	sig, _ := got.(syscall.Signal)
	switch {
	case sig == unix.SIGTERM, sig == unix.SIGPWR, sig == early.ShutdownSignal,
		sig == unix.SIGHUP && s.hasTTY, // the terminal is gone
		sig == unix.SIGINT && time.Since(s.lastInterrupt) < doubleInterruptWindow,
		!s.hasCmd && (sig == unix.SIGINT || sig == unix.SIGQUIT):
		return supervisor.Shutdown{Reason: "received " + unix.SignalName(sig) + s.bootHookText()}
	case sig == unix.SIGINT:
		s.lastInterrupt = time.Now()
	case sig == unix.SIGHUP && !s.hasCmd:
		guard.Go("reloading the configuration", s.reload)
	}
	if !s.hasCmd {
		return nil
	}
	return supervisor.ForwardSignal{Name: units.CmdName, Signal: int(sig)}
}

// LastInterrupt returns when a Ctrl-C was last forwarded to the CMD. Only the supervisor's loop may call
// LastInterrupt and SetLastInterrupt.
func (s *Signals) LastInterrupt() time.Time { return s.lastInterrupt }

// SetLastInterrupt restores the time of LastInterrupt after a re-execution.
func (s *Signals) SetLastInterrupt(at time.Time) { s.lastInterrupt = at }

// HandledSignals returns the signals that have a handler, without SIGCHLD.
func HandledSignals() (all []syscall.Signal) {
	for _, s := range append(early.InitSignals(), fatalSignals...) {
		if n, is := s.(syscall.Signal); is {
			all = append(all, n)
		}
	}
	return all
}

// TakePending removes and returns the signals that this process has received and not handled, so that a re-execution does not
// lose them.
func (s *Signals) TakePending() (late []syscall.Signal) {
	idle := make(chan os.Signal, 1)
	signal.Notify(idle, early.InitSignals()...)
	signal.Stop(idle) // Stop returns when no signal is on its way to a channel
	for {
		select {
		case sig := <-s.Incoming:
			if n, is := sig.(syscall.Signal); is {
				late = append(late, n)
			}
		default:
			return late
		}
	}
}

// PutBack queues the signals of [Signals.TakePending] again, after a failed re-execution or in the next program.
func (s *Signals) PutBack(late []syscall.Signal) {
	for _, sig := range late {
		select {
		case s.Incoming <- sig:
		default: // the queue is full of later signals
		}
	}
}

// faultReportPause is the minimum time between two reports about ignored signals.
const faultReportPause = 10 * time.Second

// ReportFaults reports fault signals, such as SIGSEGV, that another process has sent and PID 1 has ignored. It blocks until
// ctx ends.
func (s *Signals) ReportFaults(ctx context.Context, report func(text string)) {
	reported := make(map[syscall.Signal]uint64)
	for {
		if !pause.Until(ctx, s.faultSignals) {
			return
		}
		if text := faultsText(proc.SentFaults(), reported); text != "" {
			report(text)
		}
		if !pause.For(ctx, faultReportPause) {
			return
		}
	}
}

// faultsText describes the fault signals since the last report; "" if there are none. reported maps each signal to the number
// already reported, and is updated.
func faultsText(faults []proc.SentFault, reported map[syscall.Signal]uint64) string {
	var what []string
	for _, f := range faults {
		n := f.Count - reported[f.Signal]
		if n == 0 {
			continue
		}
		reported[f.Signal] = f.Count
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
