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
)

// Runner starts workers, knows how each one ended, and ends them with everything they left behind. Its methods are called
// from one goroutine of the dispatcher at a time.
//
// A runner reports only what it knows. A worker that another program started, or that it does not remember, is [Unknown] to it.
// The dispatcher then judges by pid, as the other writers of the board do.
type Runner interface {
	// Start starts the worker of a run and returns as soon as it is executed. An error means that no process is left of it.
	// A second call for the same run must not start a second worker.
	Start(ctx context.Context, job Job) (Worker, error)

	// Look says for each run what has become of its worker, in the order of refs. It doesn't wait.
	Look(ctx context.Context, refs []Ref) ([]Sighting, error)

	// Withdraw makes sure that no worker of a run begins from now on: a start that got no answer must not take effect later. If that
	// start was faster, the answer has its worker. After an error the start is as uncertain as before.
	Withdraw(ctx context.Context, ref Ref) (Sighting, error)

	// End terminates the workers side by side: SIGTERM to the worker and everything it left, KILL after the grace. It returns
	// when all are dead or when killing didn't help in time, and says for each which. A run that it doesn't know gets a
	// Termination that wasn't attempted.
	End(ctx context.Context, refs []Ref, grace time.Duration) []Termination

	// Left finds the processes that earlier attempts at a task have left, whoever started them: by their environment, which they
	// inherit. Of the ref, DB and Task count. False: that can't be found out now.
	Left(ref Ref) (pids []int, ok bool)

	// Forget tells that these runs are over on the board. The runner may drop its memory of them as soon as their workers have
	// ended. A worker may need a moment to end after it has finished its task.
	Forget(refs []Ref)
}

// Job is a worker to be started: stdin is /dev/null, both outputs are appended to Log, the session is a new one.
type Job struct {
	Ref
	Profile string
	Options []string          // the words of the command line that depend on the task: --skills, -m, --toolsets with their values
	Dir     string            // empty: the dispatcher's
	Vars    map[string]string // of the environment, what is the worker's own
	Log     string            // rotated already; its directory exists
}

// Ref names the worker of one run. DB and Run are its identity; PID and Start are what is known of its process.
type Ref struct {
	DB    string // absolute path of the board's file
	Board string
	Task  string
	Run   int64
	Worker
}

// Worker is a process that can't be mistaken for a later one with the same pid.
type Worker struct {
	PID   int    // 0: not known
	Start uint64 // start time in clock ticks since boot, field 22 of /proc/PID/stat; 0: not known
	Boot  string // the boot it belongs to, /proc/sys/kernel/random/boot_id; empty: not known
}

// Sight is what a runner knows of a worker.
type Sight int

// The answers of a runner.
const (
	Unknown Sight = iota // not started by this runner, or forgotten
	Alive
	Ended
	NeverStarted // the runner is sure that no worker of this run exists or will
)

// Sighting is a runner's answer about one run. Worker is set when it is alive, Exit when it ended.
type Sighting struct {
	Sight  Sight
	Worker Worker
	Exit   Exit
}

// Exit is how a worker ended.
type Exit struct {
	Known      bool // false: it is gone and its end is unknown
	Code       int  // meaningful when Signal is 0
	Signal     int
	OOM        bool // the kernel killed it for want of memory
	Terminated bool // somebody ended it on purpose: a stop of the dispatcher, of the container, an operator
	Shutdown   bool // the end of its container was that
	At         time.Time
}

// Termination is how an attempt to end a worker went. A worker that was attempted and isn't Terminated survived.
type Termination struct {
	Attempted  bool
	Terminated bool
	Killed     bool // SIGKILL was needed
}

// Processes is what the dispatcher sees and does by pid, for workers that its runner doesn't know.
type Processes interface {
	// Alive says whether the process exists and isn't a zombie. One that can't be looked at counts as alive.
	Alive(pid int) bool
	// End sends SIGTERM, waits for the grace, sends SIGKILL and waits a moment.
	End(ctx context.Context, pid int, grace time.Duration) Termination
	// Start is when the process started, in clock ticks since boot; 0 if there is none or it can't be told.
	Start(pid int) uint64
}

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
		env, err := readRegular(dir+"/environ", mostEnvironment)
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

// mostEnvironment bounds what is read of an environment. A process can make the kernel show any part of its memory as its environment
// (prctl(2), PR_SET_MM), terabytes of zeros too.
const mostEnvironment = 2 << 20
