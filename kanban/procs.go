package kanban

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// kernel is [Processes] by /proc and pidfd.
type kernel struct{}

// procStat reads when a process started and its state. False: there is none, or it can't be looked at.
func procStat(pid int) (start, state string, ok bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", "", false
	}
	_, rest, found := bytes.Cut(data[max(0, bytes.LastIndexByte(data, ')')):], []byte(") ")) // a name may hold anything
	fields := bytes.Fields(rest)
	if !found || len(fields) < 20 {
		return "", "", false
	}
	return string(fields[19]), string(fields[0]), true
}

// Alive implements [Processes].
func (kernel) Alive(pid int) bool {
	if pid <= 0 || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	_, state, ok := procStat(pid)
	return !ok || state != "Z" && state != "X"
}

// Start implements [Processes].
func (kernel) Start(pid int) uint64 {
	text, _, ok := procStat(pid)
	if !ok || pid <= 0 {
		return 0
	}
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// killWait is how long a killed process is given to disappear. One that doesn't is stuck in the kernel.
const killWait = time.Second

// End implements [Processes].
func (k kernel) End(ctx context.Context, pid int, grace time.Duration) Termination {
	fd, err := unix.PidfdOpen(pid, 0)
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
