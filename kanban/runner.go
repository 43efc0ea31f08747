package kanban

import (
	"context"
	"time"
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
