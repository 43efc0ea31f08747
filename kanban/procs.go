package kanban

import (
	"context"
	"errors"
	"time"

	"hinit/internal/procstat"

	"golang.org/x/sys/unix"
)

// kernel is [Processes] by /proc and pidfd.
type kernel struct{}

// mostPID is the largest process number there can be. The kernel would cut a larger one from a row off, and find another process.
const mostPID = 1 << 22

// Alive implements [Processes].
func (kernel) Alive(pid int) bool {
	if pid <= 0 || pid > mostPID || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	st, err := procstat.Read(pid)
	return err != nil || st.State != 'Z' && st.State != 'X'
}

// Start implements [Processes].
func (kernel) Start(pid int) uint64 {
	st, _ := procstat.Read(pid)
	return st.Start
}

// killWait is how long a killed process is given to disappear. One that doesn't is stuck in the kernel.
const killWait = time.Second

// End implements [Processes].
func (k kernel) End(ctx context.Context, pid int, grace time.Duration) Termination {
	fd, err := unix.PidfdOpen(min(pid, mostPID+1), 0)
	if errors.Is(err, unix.ESRCH) {
		return Termination{Attempted: true, Terminated: true}
	}
	if err != nil {
		return Termination{Attempted: true}
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil {
		return Termination{Attempted: true, Terminated: errors.Is(err, unix.ESRCH)}
	}
	if ended(ctx, fd, grace) {
		return Termination{Attempted: true, Terminated: true}
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	return Termination{Attempted: true, Killed: err == nil, Terminated: ended(context.WithoutCancel(ctx), fd, killWait)}
}

// ended waits until a process has ended, for so long. It is a zombie at the latest then.
func ended(ctx context.Context, fd int, wait time.Duration) bool {
	const slice = 100 * time.Millisecond // between two looks at the context
	for {
		step := min(wait, slice)
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(step.Milliseconds()))
		switch {
		case n > 0:
			return true
		case err != nil && !errors.Is(err, unix.EINTR):
			return false
		case err == nil:
			wait -= step
		}
		if wait <= 0 || ctx.Err() != nil {
			return false
		}
	}
}
