package reexec

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
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

// HaltVar is the environment variable by which the new program knows that everything else is stopped, see [Halted]. Package entry reads
// its first number before the Go runtime begins.
const HaltVar = "HINIT_HALTED"

const (
	// plenty is how many free process numbers are enough: no bomb takes so many while a program starts. With fewer the others are stopped.
	plenty = 1024
	// outside is how many process numbers may be taken from outside, as by docker exec, while everything else is stopped.
	outside = 3
	// spare is how many threads must be possible beyond this program's own where the control group tells no limit.
	spare = 64
	// mostBefore is how many stopped processes the variable names; a number has up to ten digits and a blank.
	mostBefore = 10_000
	// haltTime is how long the others may take to stand still. The supervisor waits meanwhile.
	haltTime = 10 * time.Second
	// roomTime is how long a re-execution after a fault waits for room.
	roomTime = 10 * time.Second
)

// errNoRoom is wrapped by the error of a re-execution that the new program might not survive.
var errNoRoom = errors.New("the new program might not get its threads")

// Halted is what the old program tells the new one when it has stopped every other process.
type Halted struct {
	Threads    int   // besides the first one, that the new program needs; a few process numbers more are free
	Processors int   // GOMAXPROCS of the old program
	since      int64 // by CLOCK_MONOTONIC, in nanoseconds
	before     []int // processes that were stopped before
}

func (h *Halted) String() string {
	// execve(2) takes at most 128 KiB for a variable. The processes that have no place in it go on.
	before := h.before[:min(len(h.before), mostBefore)]
	return strings.Trim(fmt.Sprint(append([]int{h.Threads, h.Processors, int(h.since)}, before...)), "[]")
}

// parseHalted is the reverse of String; nil when nothing was stopped.
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

// Resume lets every process go on and returns how long they stood. It is called when this program has its threads.
func (h *Halted) Resume() time.Duration {
	if h == nil {
		return 0
	}
	proc.Resume(h.before)
	return time.Duration(monotonic() - h.since)
}

// makeRoom sees to it that the new program gets its threads. execve(2) frees the numbers of this program's threads, and the Go runtime
// of the new one ends the process when others have taken them. Where room is short, everything else is stopped; halted is nil
// where there is plenty. knows says that the new program will let the others go on.
func makeRoom(knows bool) (halted *Halted, err error) {
	var task unix.Stat_t
	threads := 64 // without /proc
	if unix.Stat("/proc/self/task", &task) == nil {
		threads = int(task.Nlink) - 2
	}
	// A subreaper can stop no other process; room that is there now has to do.
	if free, limited := tuning.FreeProcesses(); (!limited || free >= plenty || os.Getpid() != 1) && roomFor(threads+spare) {
		return nil, nil
	}
	if !knows {
		return nil, fmt.Errorf("%w: the container is short of process numbers, and this binary is too old to start then; stop some processes first", errNoRoom)
	}
	h := &Halted{Threads: threads - outside, Processors: runtime.GOMAXPROCS(0), since: monotonic()}
	var beyond int
	if h.before, beyond, err = proc.Halt(haltTime); err != nil {
		return nil, fmt.Errorf("%w: the container is short of process numbers, and %w", errNoRoom, err)
	}
	free, limited := tuning.FreeProcesses()
	switch {
	case limited && free < 0:
		err = fmt.Errorf("%w: the container has %d processes and threads more than --pids-limit allows; stop some first", errNoRoom, -free)
	case beyond != 0 && !roomFor(spare):
		err = fmt.Errorf("%w: the container is short of process numbers, and hinit may not stop process %d of another user meanwhile", errNoRoom, beyond)
	default:
		return h, nil
	}
	h.Resume()
	return nil, err
}

// roomFor reports whether so many threads can be made now.
func roomFor(threads int) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return entry.Room(threads)
}

// knowsHalt reports whether a program lets the others go on, which it does if it has the name of the variable. It blocks on the disk.
func knowsHalt(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	b := bufio.NewReaderSize(f, 64<<10)
	for {
		window, err := b.Peek(64 << 10)
		if bytes.Contains(window, []byte(HaltVar)) {
			return true
		}
		if err != nil && !errors.Is(err, io.EOF) || len(window) < len(HaltVar) {
			return false
		}
		_, _ = b.Discard(len(window) - len(HaltVar) + 1) // they are in the buffer
	}
}
