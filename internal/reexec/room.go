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

// HaltedVariable is the environment variable that tells the new program that the old one has stopped all other processes, see
// [Halted]. Package entry reads the first number in it before the Go runtime begins.
const HaltedVariable = "HINIT_HALTED"

const (
	// plentyOfPIDs is a number of free PIDs that is always enough: no fork bomb uses so many while a program starts. If fewer are
	// free, hinit stops all other processes.
	plentyOfPIDs = 1024
	// outsidePIDs is the number of PIDs that may be taken from outside the container, for instance by docker exec, while all
	// other processes are stopped.
	outsidePIDs = 3
	// spareThreads is the number of additional threads that must be possible besides the new program's own threads. This
	// margin is needed because the PID limit of the control group may be unreadable.
	spareThreads = 64
	// maxListedStopped is the maximum number of stopped processes that HaltedVariable lists. A PID takes up to ten digits and a
	// blank.
	maxListedStopped = 10_000
	// haltTime limits the time to stop the other processes. The supervisor's loop is blocked during this time.
	haltTime = 10 * time.Second
	// pidWaitLimit is the maximum time that a re-execution after a fault waits for free PIDs.
	pidWaitLimit = 10 * time.Second
)

// errTooFewPIDs means that too few PIDs are free for the new program's threads. Other errors wrap errTooFewPIDs.
var errTooFewPIDs = errors.New("the new program might not get its threads")

// Halted tells the new program that the old program has stopped every other process, because few PIDs were free. The new program
// resumes them when it has its threads.
type Halted struct {
	Threads    int   // number of threads that the new program needs besides its first; this number of PIDs, plus a few, is free
	Processors int   // number of processors that the old program used (GOMAXPROCS)
	since      int64 // when the processes were stopped, by CLOCK_MONOTONIC, in nanoseconds
	before     []int // processes that were already stopped before, and stay stopped
}

func (h *Halted) String() string {
	// execve(2) accepts at most 128 KiB for a variable. Processes beyond maxListedStopped are continued like the others.
	before := h.before[:min(len(h.before), maxListedStopped)]
	return strings.Trim(fmt.Sprint(append([]int{h.Threads, h.Processors, int(h.since)}, before...)), "[]")
}

// parseHalted parses a text that [Halted.String] has made. It returns nil if no process was stopped.
func parseHalted(text string) *Halted {
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
	return &Halted{n[0], n[1], int64(n[2]), n[3:]}
}

// Resume resumes the stopped processes, and returns how long they were stopped. Call it when this program has created its
// threads. h may be nil.
func (h *Halted) Resume() time.Duration {
	if h == nil {
		return 0
	}
	proc.Resume(h.before)
	return time.Duration(monotonic() - h.since)
}

// reservePIDs makes sure that the new program can create its threads. execve(2) frees the PIDs of this program's threads. If
// other processes take these PIDs, the Go runtime of the new program ends the process. So if few PIDs are free, reservePIDs stops
// all other processes and returns them in halted; otherwise halted is nil.
func reservePIDs() (halted *Halted, err error) {
	var task unix.Stat_t
	threads := 64 // a guess, if /proc is missing
	if unix.Stat("/proc/self/task", &task) == nil {
		threads = int(task.Nlink) - 2
	}
	// A subreaper can't stop other processes, so the PIDs that are free now must be enough.
	if free, limited := tuning.FreeProcesses(); (!limited || free >= plentyOfPIDs || os.Getpid() != 1) && canCreateThreads(threads+spareThreads) {
		return nil, nil
	}
	h := &Halted{Threads: threads - outsidePIDs, Processors: runtime.GOMAXPROCS(0), since: monotonic()}
	var beyond int
	if h.before, beyond, err = proc.FreezeOthers(haltTime); err != nil {
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
	h.Resume()
	return nil, err
}

// canCreateThreads reports whether this process can create the given number of additional threads now.
func canCreateThreads(threads int) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return entry.HasRoomFor(threads)
}
