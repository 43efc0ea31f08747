package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/container/signals"
	"hinit/internal/control"
	"hinit/internal/control/show"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/supervisor"
)

const (
	// freezeTime is how long the logs may take to get what has been read into their files. The supervisor waits meanwhile.
	freezeTime = time.Second
	// lastEvents is how many events the report of a fault shows.
	lastEvents = 50
)

// house is the container as it is handed over.
type house struct {
	*signals.Signals
	c      *container
	socket *control.Socket // on its way to the next generation, nil for none
}

// Reexec implements control.Replacer.
func (a api) Reexec(ctx context.Context, binary string) (int, error) {
	if a.c.loop.Snapshot().Stopping {
		return 0, supervisor.ErrStopping
	}
	return a.c.generation.Ask(ctx, binary)
}

// Claim implements [reexec.House].
func (h *house) Claim() (release func(), err error) {
	if !h.c.reloads.TryLock() {
		return nil, errors.New("a reload is under way; try again")
	}
	return h.c.reloads.Unlock, nil
}

// Rest implements [reexec.House]: requests get their answer or are told, the disks and the scan directory come to rest.
func (h *house) Rest(fault bool) (wake func(), err error) {
	h.socket = h.c.control.Leave()
	release := func() {}
	wake = func() {
		release()
		h.c.control.Rejoin(h.socket)
		h.socket = nil
	}
	if !fault {
		if err := h.c.restDisks(); err != nil {
			return wake, err
		}
	}
	held, err := h.c.slots().Hold()
	switch {
	case err == nil:
		release = held
	case fault: // it may be what has the fault
		err = nil
	}
	return wake, err
}

// restDisks waits until nothing is being written to the volume; the logs have their own Freeze. execve(2) waits for every other
// thread, and one that waits for a frozen file system can't be ended.
func (c *container) restDisks() error {
	for end := time.Now().Add(freezeTime); !c.keeper.Idle() || c.store.Writing() || c.timetable.Writing(); {
		if time.Now().After(end) {
			return errors.New("a disk does not answer, and what waits for it would hold up the new image; try again when it does")
		}
		<-time.After(freezeTime / 100)
	}
	return nil
}

// Yield implements [reexec.House].
func (h *house) Yield(f func()) error { return h.c.loop.Yield(context.Background(), f) }

// LastEvents implements [reexec.House].
func (h *house) LastEvents() string {
	history := h.c.loop.History()
	newest := history.Last()
	records, _ := history.Since(newest - min(newest, lastEvents))
	var b strings.Builder
	for _, r := range records {
		fmt.Fprintf(&b, "%s  %s: ", r.At.Format("2006-01-02 15:04:05.000"), show.Line(r.Service))
		if r.From != r.To {
			fmt.Fprintf(&b, "%s → %s: ", r.From, r.To)
		}
		fmt.Fprintf(&b, "%s [pid %d]\n", show.Line(r.Reason), r.PID)
	}
	return b.String()
}

// Keep implements [reexec.House].
func (h *house) Keep(name string, report []byte) (path string, err error) {
	dir := filepath.Join(h.c.cfg.Load().Home, "logs")
	d, _, err := fsutil.MakeReal(dir, 0o755, h.c.agent.Actor.In(blocking.Volume))
	if err != nil {
		return "", err
	}
	defer d.Close()
	_, err = d.Append(name, report, 0o640)
	return filepath.Join(dir, name), err
}

// Say implements [reexec.House].
func (h *house) Say(line string) { h.c.Line(line) }

// End implements [reexec.House].
func (h *house) End(code int, reason string) {
	h.c.loop.Post(supervisor.Shutdown{Code: code, Reason: reason})
}

// loopPanicked is told of a panic of the supervisor's loop, in its goroutine. It returns the container's exit code.
func (c *container) loopPanicked(value any, stack []byte) int {
	c.generation.SupervisorPanicked(value, stack)
	return lastStop(c.signals.Children, c.cfg.Load().Shutdown.Budget)
}

// lastStop ends everything below this process without a supervisor: TERM, and KILL at the end of the budget. It returns the exit
// code.
func lastStop(children <-chan os.Signal, budget time.Duration) int {
	procs, err := proc.New()
	if err != nil {
		return reexec.ExitFault
	}
	const afterKill = 500 * time.Millisecond
	procs.SignalRest(int(unix.SIGTERM))
	end := time.After(max(budget-afterKill, 0))
	for killed := false; !procs.Reap(false, func(proc.Exit) {}); {
		select {
		case <-children:
		case <-end:
			if killed {
				return reexec.ExitFault
			}
			killed = true
			procs.SignalRest(int(unix.SIGKILL))
			end = time.After(afterKill)
		}
	}
	return reexec.ExitFault
}
