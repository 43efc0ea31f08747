package kanban

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/procstat"
	"hinit/internal/wholefile"
)

// Runner starts workers, knows how each one ended, and ends them with all processes that they have left. The dispatcher calls its
// methods from one goroutine at a time.
//
// A runner reports only what it knows. A worker that another program started, or that the runner has forgotten, is [Unknown].
// Then the dispatcher relies on the pid, as the other writers of the board do.
type Runner interface {
	// Start starts the worker of a run, and returns as soon as its program is executing. After an error, no process of it is
	// left. A second call for the same run must not start a second worker.
	Start(ctx context.Context, job Job) (Worker, error)

	// WorkerStates returns the state of each run's worker, in the order of refs. It doesn't wait.
	WorkerStates(ctx context.Context, refs []Ref) ([]Sighting, error)

	// Withdraw cancels a start that got no answer, so that it does not take effect later. If the worker was already started, the
	// result describes it. After an error, it is still unknown whether the worker will start.
	Withdraw(ctx context.Context, ref Ref) (Sighting, error)

	// End terminates the workers at the same time: SIGTERM to each worker and all processes that it has left, SIGKILL after the
	// grace. It returns when all are dead, or when killing had no effect in time, with the result for each. For a run that it
	// doesn't know, the result has Attempted false.
	End(ctx context.Context, refs []Ref, grace time.Duration) []Termination

	// Leftovers finds the processes that earlier attempts at a task have left, whichever program started them, by the environment
	// that they inherit. Only DB and Task of the ref count. ok is false if they can't be found now.
	Leftovers(ref Ref) (pids []int, ok bool)

	// Forget tells the runner that these runs are over on the board. The runner may drop their data as soon as their workers have
	// ended, which may be a moment after the end of the task.
	Forget(refs []Ref)
}

// Job is a worker to start. Its stdin is /dev/null, both outputs are appended to Log, and it gets a new session.
type Job struct {
	Ref
	Profile string
	Options []string          // arguments that depend on the task: --skills, -m, --toolsets with their values
	Dir     string            // working directory; empty: the dispatcher's
	Vars    map[string]string // environment variables of this worker
	Log     string            // already rotated; its directory exists
}

// Ref identifies the worker of one run by DB and Run. PID and Start describe its process, if known.
type Ref struct {
	DB    string // absolute path of the board's file
	Board string
	Task  string
	Run   int64
	Worker
}

// Worker is a process, with enough data to distinguish it from a later one with the same pid.
type Worker struct {
	PID   int    // 0: not known
	Start uint64 // start time in clock ticks since boot, field 22 of /proc/PID/stat; 0: not known
	Boot  string // the machine's boot and the container it belongs to, see [instance]; empty: not known
}

// Sight is the state of a worker as a runner knows it.
type Sight int

// The possible states.
const (
	Unknown Sight = iota // not started by this runner, or forgotten
	Alive
	Ended
	NeverStarted // the runner is sure that no worker of this run exists or will exist
)

// Sighting is a runner's answer about one run. Worker is set if it is alive, Exit if it has ended.
type Sighting struct {
	Sight  Sight
	Worker Worker
	Exit   Exit
}

// Exit says how a worker ended.
type Exit struct {
	Known      bool // false: it has ended in an unknown way
	Code       int  // meaningful when Signal is 0
	Signal     int
	OOM        bool // the kernel killed it because memory ran out
	Terminated bool // it was ended on purpose: the dispatcher stopped it, its container stopped, or an operator asked
	Shutdown   bool // it ended because its container stopped
	At         time.Time
}

// Termination is the result of an attempt to end a worker. If Attempted is set and Terminated is not, the worker survived.
type Termination struct {
	Attempted  bool
	Terminated bool
	Killed     bool // SIGKILL was needed
}

// Processes observes and ends workers by pid, if the runner doesn't know them.
type Processes interface {
	// Alive reports whether the process exists and isn't a zombie. A process that can't be examined counts as alive.
	Alive(pid int) bool
	// End sends SIGTERM and waits until the process has ended, at most for grace. If it still runs, End sends SIGKILL and waits a
	// moment.
	End(ctx context.Context, pid int, grace time.Duration) Termination
	// Start returns when the process started, in clock ticks since boot; 0 if it does not exist or the time is unknown.
	Start(pid int) uint64
}

// kernel implements [Processes] by /proc and pidfd.
type kernel struct{}

// mostPID is the largest possible process id. The kernel would truncate a larger one, and so find another process.
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

// killWait is how long a killed process may take to disappear. After that it counts as stuck in the kernel.
const killWait = time.Second

// End implements [Processes].
func (k kernel) End(ctx context.Context, pid int, grace time.Duration) Termination {
	fd, err := unix.PidfdOpen(min(pid, mostPID+1), 0)
	if err != nil {
		return Termination{Attempted: true, Terminated: errors.Is(err, unix.ESRCH)}
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

// ended waits until a process has ended, for at most wait. A zombie counts as ended.
func ended(ctx context.Context, fd int, wait time.Duration) bool {
	const slice = 100 * time.Millisecond // pause between two checks of the context
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

// AwaitProcess blocks until a process has ended. The process need not be a child of this one. It returns at once if the process
// does not exist, or if the kernel can't wait for it.
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

// ProcessesWith finds the processes that were started with the environment variables in vars. Processes whose parent was started
// without these variables come first. sure reports whether the environment of every process of this user could be read.
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
		env, err := wholefile.Read(dir+"/environ", mostEnvironment)
		if err != nil {
			var st unix.Stat_t
			sure = sure && (unix.Stat(dir, &st) != nil || int(st.Uid) != os.Geteuid())
			continue
		}
		env = slices.Concat([]byte{0}, env, []byte{0}) // each variable is between two zeros
		has[p.PID] = true
		for name, value := range vars {
			has[p.PID] = has[p.PID] && bytes.Contains(env, []byte("\x00"+name+"="+value+"\x00"))
		}
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

// mostEnvironment limits how much of an environment is read. A process can make the kernel show any part of its memory as its
// environment (prctl(2), PR_SET_MM), even terabytes of zeros.
const mostEnvironment = 2 << 20
