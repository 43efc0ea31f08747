package kanban

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
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
	for deadline := time.Now().Add(wait); ; {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(slice.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return n > 0
		}
		if ctx.Err() != nil || !time.Now().Before(deadline) {
			return false
		}
	}
}

// AwaitProcess blocks until a process has ended that is not a child of this one. It returns at once when there is none, and where the kernel
// has no way to wait for it.
func AwaitProcess(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// ProcessesWith finds the processes that were started with these variables. Those whose parent was not come first. The result sure says that
// every process that could be one was looked at.
func ProcessesWith(vars map[string]string) (pids []int, sure bool) {
	var all []procstat.Stat
	if err := procstat.Each("/proc", func(st procstat.Stat) { all = append(all, st) }); err != nil {
		return nil, false
	}
	has, sure := make(map[int]bool), true
	for _, p := range all {
		if p.Dead() || p.PID == os.Getpid() {
			continue
		}
		dir := "/proc/" + strconv.Itoa(p.PID)
		env, ok := environment(dir)
		if !ok {
			var st unix.Stat_t
			sure = sure && (unix.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid())
			continue
		}
		has[p.PID] = hasVars(env, vars)
	}
	for _, p := range all {
		switch {
		case !has[p.PID]:
		case has[p.Parent]:
			pids = append(pids, p.PID)
		default:
			pids = slices.Insert(pids, 0, p.PID)
		}
	}
	return pids, sure
}

// mostEnvironment bounds what is read of an environment. A process can make the kernel show any part of its memory as its environment
// (prctl(2), PR_SET_MM), terabytes of zeros too.
const mostEnvironment = 2 << 20

// environment returns the variables that a process was started with. It reports false for more than mostEnvironment bytes.
func environment(dir string) (env []byte, ok bool) {
	f, err := os.Open(dir + "/environ")
	if err != nil {
		return nil, false
	}
	defer f.Close()
	env, err = io.ReadAll(io.LimitReader(f, mostEnvironment+1))
	return env, err == nil && len(env) <= mostEnvironment
}

func hasVars(env []byte, vars map[string]string) bool {
	found := 0
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		name, value, _ := bytes.Cut(kv, []byte{'='})
		if want, is := vars[string(name)]; is && want == string(value) {
			found++
		}
	}
	return found == len(vars)
}
