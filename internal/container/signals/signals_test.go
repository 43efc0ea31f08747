package signals_test

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/container/signals"
	"hinit/internal/early"
)

// TestWhatASignalMeans checks the event for each signal in a container with and without a CMD, and with and without a
// terminal.
func TestWhatASignalMeans(t *testing.T) {
	for _, tt := range []struct {
		signal   syscall.Signal
		cmd, tty bool
		want     string
	}{
		{unix.SIGTERM, true, false, "supervisor.Shutdown{Code:0 Reason:received SIGTERM, in a hook}"},
		{unix.SIGTERM, false, false, "supervisor.Shutdown{Code:0 Reason:received SIGTERM, in a hook}"},
		{unix.SIGPWR, true, false, "supervisor.Shutdown{Code:0 Reason:received SIGPWR, in a hook}"},
		{early.ShutdownSignal, true, false, "supervisor.Shutdown{Code:0 Reason:received , in a hook}"},
		{unix.SIGINT, false, true, "supervisor.Shutdown{Code:0 Reason:received SIGINT, in a hook}"},
		{unix.SIGINT, true, true, "supervisor.ForwardSignal{Name:cmd Signal:2}"},
		{unix.SIGQUIT, false, false, "supervisor.Shutdown{Code:0 Reason:received SIGQUIT, in a hook}"},
		{unix.SIGQUIT, true, false, "supervisor.ForwardSignal{Name:cmd Signal:3}"},
		{unix.SIGHUP, true, true, "supervisor.Shutdown{Code:0 Reason:received SIGHUP, in a hook}"},
		{unix.SIGHUP, true, false, "supervisor.ForwardSignal{Name:cmd Signal:1}"},
		{unix.SIGHUP, false, false, "<nil>reload"},
		{unix.SIGUSR1, true, false, "supervisor.ForwardSignal{Name:cmd Signal:10}"},
		{unix.SIGUSR1, false, false, "<nil>"},
		{unix.SIGWINCH, true, true, "supervisor.ForwardSignal{Name:cmd Signal:28}"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var s signals.Signals
			did := ""
			s.Configure(tt.cmd, tt.tty, func() { did = "reload" }, func() string { return ", in a hook" })
			e := s.Event(tt.signal)
			synctest.Wait()
			if got := fmt.Sprintf("%T%+v", e, e); e == nil {
				if did = "<nil>" + did; did != tt.want {
					t.Errorf("%v, CMD %v, terminal %v: %s", tt.signal, tt.cmd, tt.tty, did)
				}
			} else if got != tt.want {
				t.Errorf("%v, CMD %v, terminal %v: %s, not %s", tt.signal, tt.cmd, tt.tty, got, tt.want)
			}
		})
	}
}

// TestASecondInterruptStopsTheContainer checks that a second SIGINT soon after the first stops the container. The CMD
// has then ignored the first.
func TestASecondInterruptStopsTheContainer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s signals.Signals
		s.Configure(true, true, func() {}, func() string { return "" })
		kinds := func(pauses ...time.Duration) (all []string) {
			for _, pause := range pauses {
				time.Sleep(pause)
				all = append(all, fmt.Sprintf("%T", s.Event(unix.SIGINT)))
			}
			return all
		}
		const forward, shutdown = "supervisor.ForwardSignal", "supervisor.Shutdown"
		if got := kinds(0, 4*time.Second, 2*time.Second); !slices.Equal(got, []string{forward, forward, shutdown}) {
			t.Errorf("got %q", got)
		}
		at := s.LastInterrupt()
		s = signals.Signals{}
		s.Configure(true, true, func() {}, func() string { return "" })
		s.SetLastInterrupt(at)
		if got := kinds(0); !slices.Equal(got, []string{shutdown}) {
			t.Errorf("the next program: %q", got)
		}
	})
}

// TestNoSignalIsLostBetweenTwoPrograms checks that signals that arrived before a re-execution are handed over to the
// new program, and are put back if the re-execution fails.
func TestNoSignalIsLostBetweenTwoPrograms(t *testing.T) {
	s := signals.Listen()
	for _, sig := range []syscall.Signal{unix.SIGUSR1, unix.SIGUSR2} {
		if err := unix.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
	}
	var late []syscall.Signal
	for end := time.Now().Add(20 * time.Second); len(late) < 2; <-time.After(time.Millisecond) {
		late = append(late, s.TakePending()...)
		if time.Now().After(end) {
			t.Fatalf("only %v have come", late)
		}
	}
	s.PutBack(late)
	if again := s.TakePending(); !slices.Equal(again, late) {
		t.Errorf("put back were %v, there are %v", late, again)
	}
	if all := signals.HandledSignals(); !slices.Contains(all, unix.SIGTERM) || !slices.Contains(all, unix.SIGPIPE) || slices.Contains(all, unix.SIGCHLD) {
		t.Errorf("handled are %v", all)
	}
}
