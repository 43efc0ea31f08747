package kanban

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/procstat"
	"hinit/internal/trust"
	"hinit/internal/wholefile"
)

// Runner starts workers, reports how each one ended, and kills a worker together with the processes that it has left behind.
// The package kanban/cli/runner implements it. The dispatcher calls the methods from one goroutine at a time.
//
// A runner reports only what it knows. If another program started a worker, or the runner has forgotten it, the worker is
// [Unknown]. The dispatcher then relies on the pid, like the other writers of the board.
type Runner interface {
	// Start starts the worker of a run, and returns as soon as the worker's program is executing. After an error, no process of
	// the worker is left. A second call for the same run must not start a second worker.
	Start(ctx context.Context, job WorkerJob) (Worker, error)

	// WorkerStates returns the state of each worker in refs, in the same order. It doesn't block.
	WorkerStates(ctx context.Context, refs []RunRef) ([]WorkerReport, error)

	// Withdraw cancels a start that got no answer, so that it can't take effect later. If the worker was already started, the
	// result describes it. After an error, it is still unknown whether the worker will start.
	Withdraw(ctx context.Context, ref RunRef) (WorkerReport, error)

	// End terminates workers in parallel, each with all processes that it has left behind. It sends SIGTERM, and after the
	// grace SIGKILL. It returns when all are dead, or when SIGKILL had no effect in time. The results are in the order of
	// refs. If the runner doesn't know a worker, Attempted is false in its result.
	End(ctx context.Context, refs []RunRef, grace time.Duration) []Termination

	// Leftovers finds the processes that earlier attempts at a task have left behind, whichever program started them. It
	// recognises them by environment variables that every descendant of a worker inherits. It uses only the fields DB and Task of
	// ref. ok is false if the processes can't be determined now.
	Leftovers(ref RunRef) (pids []int, ok bool)

	// Forget tells the runner that these runs are over on the board. The runner may forget each run as soon as its worker has
	// ended.
	Forget(refs []RunRef)
}

// WorkerJob is a request to start a worker. The worker's stdin is /dev/null, its stdout and stderr are appended to Log, and it
// gets a new session (setsid).
type WorkerJob struct {
	RunRef
	Profile string
	Options []string          // Arguments that depend on the task: --skills, -m and --toolsets with their values.
	Dir     string            // Working directory; empty: the dispatcher's.
	EnvVars map[string]string // Environment variables of this worker.
	Log     string            // Path of the log, which the dispatcher has rotated; its directory exists.
}

// RunRef names the worker of one run: DB and Run identify the run. The embedded Worker is the worker's process, if known.
type RunRef struct {
	DB    string // Absolute path of the board's file.
	Board string
	Task  string
	Run   int64
	Worker
}

// Worker identifies a process, even after the kernel has given its pid to another process.
type Worker struct {
	PID       int    // Process ID; 0: not known.
	StartTime uint64 `json:"Start"` // Start time in clock ticks since boot, field 22 of /proc/PID/stat; 0: not known.
	BootID    string `json:"Boot"`  // Boot and container in which the process runs, see [currentContainerID]; empty: not known.
}

// Liveness says what a runner knows about a worker.
type Liveness int

// The values of Liveness.
const (
	Unknown Liveness = iota // The runner has not started this worker, or has forgotten it.
	Alive
	Ended
	NeverStarted // This run has no worker, and never will have one.
)

// WorkerReport is a runner's answer about one worker. Worker is set if Liveness is Alive. Exit is set if Liveness is Ended.
type WorkerReport struct {
	Liveness Liveness
	Worker   Worker
	Exit     Exit
}

// Exit describes how a worker ended.
type Exit struct {
	Known          bool // False if the cause of the end is unknown; Code and Signal are then 0.
	Code           int  // Exit code; valid if Signal is 0.
	Signal         int  // Signal that killed the worker; 0: none.
	OOM            bool // Whether the kernel killed the worker for lack of memory.
	Terminated     bool // Whether the dispatcher, an operator or the container's stop ended the worker on purpose.
	DuringShutdown bool // Whether the worker ended because its container stopped.
	EndedAt        time.Time
}

// Termination is the result of trying to end a worker. If Attempted is true and Terminated is false, the worker has survived.
type Termination struct {
	Attempted  bool
	Terminated bool
	Killed     bool // Whether SIGKILL was needed.
}

// ProcessControl observes and ends workers by pid. The dispatcher uses it for workers that the runner doesn't know.
type ProcessControl interface {
	// Alive reports whether the process exists and isn't a zombie. If the process can't be examined, it returns true.
	Alive(pid int) bool
	// End sends SIGTERM and waits up to grace for the process to end. If the process still runs then, End sends SIGKILL and waits
	// up to a second.
	End(ctx context.Context, pid int, grace time.Duration) Termination
	// StartTime returns the start time of the process, in clock ticks since boot. It returns 0 if the process does not exist or
	// the time is unknown.
	StartTime(pid int) uint64
	// IsWorkerOf reports whether the process was started as a worker of the task. known is false if its environment can't be
	// read.
	IsWorkerOf(pid int, task string) (is, known bool)
}

// realProcesses implements [ProcessControl] for real processes, with /proc and pidfd_open(2).
type realProcesses struct{}

// maxPID is the largest process id of Linux. A row of the board may contain a larger number, of which the kernel would use
// only the low bits and find a wrong process.
const maxPID = 1 << 22

// Alive implements [ProcessControl].
func (realProcesses) Alive(pid int) bool {
	if pid <= 0 || pid > maxPID || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		return false
	}
	st, err := procstat.Read(pid)
	return err != nil || st.State != 'Z' && st.State != 'X'
}

// StartTime implements [ProcessControl].
func (realProcesses) StartTime(pid int) uint64 {
	st, _ := procstat.Read(pid)
	return st.Start
}

// environTimeout limits the wait for the environment of a process. Reading it blocks while the process's memory is on a disk
// that does not answer.
const environTimeout = time.Second

// IsWorkerOf implements [ProcessControl]. The environment of a process may be overwritten, for instance with a title for ps(1).
func (realProcesses) IsWorkerOf(pid int, task string) (is, known bool) {
	ctx, cancel := context.WithTimeout(context.Background(), environTimeout)
	defer cancel()
	var env []byte
	err := blocking.Within(ctx, blocking.Environ, "reading an environment", func() (err error) {
		env, err = readEnviron(pid)
		return err
	})
	if err != nil {
		return false, false
	}
	return hasVar(env, "HERMES_KANBAN_TASK", task), bytes.ContainsRune(env, '=')
}

// readEnviron returns the environment of a process, with a NUL byte before and after each variable.
func readEnviron(pid int) ([]byte, error) {
	env, err := wholefile.Read("/proc/"+strconv.Itoa(pid)+"/environ", maxEnvironBytes)
	return slices.Concat([]byte{0}, env, []byte{0}), err
}

func hasVar(env []byte, name, value string) bool {
	return bytes.Contains(env, []byte("\x00"+name+"="+value+"\x00"))
}

// killTimeout limits the wait for a process after SIGKILL. A process that exists for longer is stuck in the kernel.
const killTimeout = time.Second

// End implements [ProcessControl].
func (k realProcesses) End(ctx context.Context, pid int, grace time.Duration) Termination {
	fd, err := unix.PidfdOpen(min(pid, maxPID+1), 0)
	if err == nil {
		defer unix.Close(fd)
		err = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	}
	if err != nil {
		return Termination{Attempted: true, Terminated: errors.Is(err, unix.ESRCH)}
	}
	if awaitExit(ctx, fd, grace) {
		return Termination{Attempted: true, Terminated: true}
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	return Termination{Attempted: true, Killed: err == nil, Terminated: awaitExit(context.WithoutCancel(ctx), fd, killTimeout)}
}

// awaitExit waits until the process of the pidfd fd has ended, for at most the duration wait. It reports whether the process
// has ended. A zombie counts as ended.
func awaitExit(ctx context.Context, fd int, wait time.Duration) bool {
	const slice = 100 * time.Millisecond // Pause between two checks of the context.
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

// AwaitProcess blocks until a process has ended. The process need not be a child of this one. AwaitProcess returns
// immediately if the process does not exist, or if the kernel has no pidfd_open(2).
func AwaitProcess(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	// after an error there is nothing to wait for
	_, _ = trust.Retry(func() (int, error) { return unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1) })
}

// ProcessesWithVars finds the processes that were started with the environment variables in vars. It lists the roots first, which
// are processes whose parent was started without these variables. sure is false if the list may be incomplete, because the
// environment of a process of this user could not be read.
func ProcessesWithVars(vars map[string]string) (pids []int, sure bool) {
	var all []procstat.Stat
	if err := procstat.EachProcess("/proc", func(st procstat.Stat) { all = append(all, st) }); err != nil {
		return nil, false
	}
	has, sure := make(map[int]bool), true
	for _, p := range all {
		if p.Dead() || p.PID == os.Getpid() {
			continue
		}
		env, err := readEnviron(p.PID)
		if err != nil {
			var st unix.Stat_t
			sure = sure && (unix.Stat("/proc/"+strconv.Itoa(p.PID), &st) != nil || int(st.Uid) != os.Geteuid())
			continue
		}
		has[p.PID] = true
		for name, value := range vars {
			has[p.PID] = has[p.PID] && hasVar(env, name, value)
		}
	}
	all = slices.DeleteFunc(all, func(p procstat.Stat) bool { return !has[p.PID] })
	roots, rest := lo.FilterReject(all, func(p procstat.Stat, _ int) bool { return !has[p.Parent] })
	return lo.Map(append(roots, rest...), func(p procstat.Stat, _ int) int { return p.PID }), sure
}

// maxEnvironBytes limits the bytes that are read from the environment of a process. A process can make the kernel show any
// part of its memory as its environment (prctl(2), PR_SET_MM), even terabytes of zeros.
const maxEnvironBytes = 2 << 20
