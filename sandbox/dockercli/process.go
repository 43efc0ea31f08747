package dockercli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/procstat"
)

// Process names a process so that no later one has the same name: its number and the time when it began. It returns the process's
// parent too.
func Process(pid int) (name string, parent int, err error) {
	s, err := procstat.Read(pid)
	if err != nil {
		return "", 0, fmt.Errorf("cannot look at process %d: %w", pid, err)
	}
	return fmt.Sprintf("%d.%d", pid, s.Start), s.Parent, nil
}

// lives returns the number of the process of this name. One that has ended and was not reaped yet does not live.
func lives(name string) (pid int, ok bool) {
	var start uint64
	_, _ = fmt.Sscanf(name, "%d.%d", &pid, &start) // what is no number is no process
	s, err := procstat.Read(pid)
	return pid, err == nil && pid > 0 && s.Start == start && !s.Dead()
}

// lookEvery is how often a process is looked at whose end the kernel doesn't tell (before Linux 5.10).
const lookEvery = time.Minute

// AfterEnd calls f in a goroutine of its own when the process of this name has ended, unless the context ends before. It returns false,
// and never calls it, for one that has ended already.
func AfterEnd(ctx context.Context, name string, f func()) bool {
	pid, ok := lives(name)
	if !ok {
		return false
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if _, ok := lives(name); !ok { // the descriptor may be of the next one
		if err == nil {
			unix.Close(fd)
		}
		return false
	}
	guard.Go("waiting for the end of an agent", func() {
		if err == nil {
			waitFor(ctx, os.NewFile(uintptr(fd), name))
		} else {
			for ok := true; ok && ctx.Err() == nil; _, ok = lives(name) {
				pause.For(ctx, lookEvery)
			}
		}
		if ctx.Err() == nil {
			f()
		}
	})
	return true
}

// waitFor waits for the end of a process, or of the context, by a descriptor that the runtime's poller watches: it costs no thread.
func waitFor(ctx context.Context, process *os.File) {
	defer process.Close()
	defer context.AfterFunc(ctx, func() { _ = process.SetReadDeadline(time.Unix(1, 0)) })()
	conn, err := process.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool { // ends with the deadline
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
	})
}
