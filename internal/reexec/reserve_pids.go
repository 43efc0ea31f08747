package reexec

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/entry"
	"hinit/internal/proc"
	"hinit/internal/tuning"
)

// FrozenVariable is the environment variable that tells the new program about frozen processes, see [Frozen]. Package entry
// reads the first number in it before the Go runtime begins.
const FrozenVariable = "HINIT_HALTED"

const (
	// plentyOfPIDs is the number of free PIDs that always suffices, because no fork bomb takes so many during the start of a
	// program. With fewer, hinit freezes all other processes.
	plentyOfPIDs = 1024
	// outsidePIDs is how many PIDs may be taken from outside the container, for instance by docker exec, while all its
	// processes are frozen.
	outsidePIDs = 3
	// spareThreads is the required number of possible threads beyond the necessary ones, because hinit may be unable to read
	// the PID limit of the control group.
	spareThreads = 64
	// maxStoppedBefore is how many of stoppedBefore the variable FrozenVariable can list, with up to ten digits and a blank
	// each.
	maxStoppedBefore = 10_000
	// freezeTimeout limits the time for freezing the other processes, because the supervisor's loop is blocked.
	freezeTimeout = 10 * time.Second
	// pidWaitLimit is how long a re-execution after a fault waits for free PIDs.
	pidWaitLimit = 10 * time.Second
)

// errTooFewPIDs means that the free PIDs may not suffice for the threads of the new program. Other errors wrap it.
var errTooFewPIDs = errors.New("the new program might not get its threads")

// Frozen tells the new program that the old program has frozen all other processes with SIGSTOP, because few PIDs were free.
// The new program calls [Frozen.Thaw] when it has its threads.
type Frozen struct {
	Threads       int   // number of the new program's threads besides its first; this many PIDs, and a few more, are free
	Processors    int   // processors that the old program used (GOMAXPROCS)
	since         int64 // when the processes were frozen, in nanoseconds of CLOCK_MONOTONIC
	stoppedBefore []int // PIDs of processes that were already stopped by a signal; Thaw does not continue them
}

func (h *Frozen) String() string {
	// execve(2) accepts at most 128 KiB in one variable, so the list is cut off. Thaw then also continues stopped processes that
	// are not in it.
	before := h.stoppedBefore[:min(len(h.stoppedBefore), maxStoppedBefore)]
	return strings.Trim(fmt.Sprint(append([]int{h.Threads, h.Processors, int(h.since)}, before...)), "[]")
}

func parseFrozen(text string) *Frozen {
	var n []int
	for word := range strings.FieldsSeq(text) {
		i, err := strconv.Atoi(word)
		if err != nil {
			return nil
		}
		n = append(n, i)
	}
	if len(n) < 3 {
		return nil
	}
	return &Frozen{n[0], n[1], int64(n[2]), n[3:]}
}

// Thaw continues the frozen processes, and returns how long they were frozen. Call it when this program has its threads. h may
// be nil.
func (h *Frozen) Thaw() time.Duration {
	if h == nil {
		return 0
	}
	proc.ThawOthers(h.stoppedBefore)
	return time.Duration(monotonic() - h.since)
}

// reservePIDs makes sure that the new program can create its threads. execve(2) frees the PIDs of the present threads. If other
// processes take them, the Go runtime of the new program ends that program. So if few PIDs are free, reservePIDs freezes all
// other processes. It returns their description for the new program, or nil.
func reservePIDs() (frozen *Frozen, err error) {
	var task unix.Stat_t
	threads := 64 // the assumed number if /proc is missing
	if unix.Stat("/proc/self/task", &task) == nil {
		threads = int(task.Nlink) - 2
	}
	// A subreaper can't freeze the other processes, so the free PIDs must suffice.
	if free, limited := tuning.FreeProcesses(); (!limited || free >= plentyOfPIDs || os.Getpid() != 1) && canCreateThreads(threads+spareThreads) {
		return nil, nil
	}
	h := &Frozen{Threads: threads - outsidePIDs, Processors: runtime.GOMAXPROCS(0), since: monotonic()}
	var beyond int
	if h.stoppedBefore, beyond, err = proc.FreezeOthers(freezeTimeout); err != nil {
		return nil, fmt.Errorf("%w: the container is short of process numbers, and %w", errTooFewPIDs, err)
	}
	free, limited := tuning.FreeProcesses()
	switch {
	case limited && free < 0:
		err = fmt.Errorf("%w: the container has %d processes and threads more than its limit allows (docker: --pids-limit; a pod: podPidsLimit of the kubelet); stop some first", errTooFewPIDs, -free)
	case beyond != 0 && !canCreateThreads(spareThreads):
		err = fmt.Errorf("%w: the container is short of process numbers, and hinit may not stop process %d of another user meanwhile", errTooFewPIDs, beyond)
	default:
		return h, nil
	}
	h.Thaw()
	return nil, err
}

// canCreateThreads reports whether this process can now create so many additional threads.
func canCreateThreads(threads int) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return entry.HasRoomFor(threads)
}
