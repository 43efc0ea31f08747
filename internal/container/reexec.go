package container

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/container/report"
	"hinit/internal/container/signals"
	"hinit/internal/control"
	"hinit/internal/fsutil"
	"hinit/internal/proc"
	"hinit/internal/reexec"
	"hinit/supervisor"
)

// freezeTime is how long the logs may take to get what has been read into their files. The supervisor waits meanwhile.
const freezeTime = time.Second

// house is the container as it is handed over.
type house struct {
	*signals.Signals
	c      *container
	socket *control.Socket // on its way to the next generation, nil for none
}

// reexec begins a re-execution.
func (c *container) reexec(ctx context.Context, binary string) (int, error) {
	if c.loop.Snapshot().Stopping {
		return 0, supervisor.ErrStopping
	}
	_ = c.loop.Do(ctx, supervisor.Remark{Text: "asked to re-execute itself"}) // it fails when everything ends anyway
	return c.generation.Ask(ctx, binary)
}

// Claim implements [reexec.House].
func (h *house) Claim() (release func(), err error) {
	if !h.c.registry.Turn.TryLock() {
		return nil, errors.New("a reload is under way; try again")
	}
	return h.c.registry.Turn.Unlock, nil
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
	if s6 := h.c.s6.Load(); s6 != nil {
		held, err := s6.Hold()
		if err == nil {
			release = held
		} else if !fault { // else it may be what has the fault
			return wake, err
		}
	}
	return wake, nil
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
func (h *house) LastEvents() string { return report.LastEvents(h.c.loop.History()) }

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
	proc.EndRest(c.signals.Children, c.cfg.Load().Shutdown.Budget)
	return reexec.ExitFault
}
