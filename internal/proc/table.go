package proc

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Table holds the processes that this process has started and not yet reaped. Only one goroutine may use it.
type Table struct {
	owned             map[int]uint64  // run numbers by the PID of the living main process
	runs              map[uint64]*run // runs by number, until Forget drops them
	null              *os.File
	nonce             string       // distinguishes the runs of this table from runs of another hinit on the same machine
	masked            bool         // hinit was started with blocked signals
	forkers           map[int]bool // threads of this process that may have children: the oldest, and threads that have started a process
	procfs            *scanner
	marks             marker
	oom               oomScore
	byMark            map[uint64]uint64 // run numbers by mark
	members           membership
	environ           environRead   // the last read of an environment whose result was not used
	environWaited     time.Duration // how long this scan has waited for environments
	heldByTracer      []int         // dead main processes that a tracer holds, for the next calls of nextHeldByTracer
	heldSearched      time.Time     // when nextHeldByTracer last searched
	checksPausedUntil time.Time     // time until which findProgram does not check paths
}

// run holds the table's data about the processes of one run.
type run struct {
	id      uint64
	mark    uint64  // mark of the run's processes; 0 for none
	mainPID int     `reexec:"main"` // PID of the main process, 0 after it was reaped
	group   int     // process group of the main process; valid as long as a known process of the run belongs to it
	session bool    // the main process also leads a session of the same number
	user    *uint32 // uid of the run; nil if an older hinit handed over the run without it
	cgroup  string  // directory of the run's control group, or "" for none
}

// Exit describes a reaped child.
type Exit struct {
	ID           uint64 // number of the run; 0 for an orphan
	OrphanRun    uint64 // for an orphan: its run, if the main process of this run was reaped earlier; 0 if unknown
	PID          int
	Code         int   // exit code, -1 after a signal
	Signal       int   // the signal that ended the process, 0 after an exit
	OOM          *bool // after SIGKILL: whether the kernel has killed a process of the control group for lack of memory; nil if unknown
	Leftover     bool  // other processes of the run are alive
	MaybeMembers []int // living orphans whose run is unknown and may be this one
	CPU          time.Duration
	MaxRSS       int64 // largest resident memory of the process, in bytes
}

// New returns an empty table. If this process is not PID 1, New makes it a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so
// that orphans of its services become its children. New fails if the kernel does not let this process wait for children,
// because then a supervisor can't work.
func New() (*Table, error) {
	if err := canWait(); err != nil {
		return nil, err
	}
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("cannot become a subreaper: %w", err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open %s for the input of services: %w", os.DevNull, err)
	}
	nonce := make([]byte, 8)
	_, _ = rand.Read(nonce) // never fails (crypto/rand)
	t := &Table{
		owned: make(map[int]uint64), runs: make(map[uint64]*run), forkers: map[int]bool{os.Getpid(): true}, null: null, nonce: hex.EncodeToString(nonce),
		procfs: newScanner(), marks: newMarker(), oom: newOOMScore(), byMark: make(map[uint64]uint64),
		members: membership{known: make(map[identity]uint64), origins: make(map[identity]uint64)},
	}
	var mask, empty unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_BLOCK, nil, &mask) == nil {
		t.masked = mask != empty
	}
	return t, nil
}

// Signal signals the main process of a run. The error is os.ErrProcessDone after that process was reaped.
func (t *Table) Signal(id uint64, signal int) error { return t.signalMain(id, signal, "process", 1) }

// SignalGroup signals the process group that the main process of a run leads. The error is os.ErrProcessDone after that process
// was reaped, because the number may then belong to another group.
func (t *Table) SignalGroup(id uint64, signal int) error {
	return t.signalMain(id, signal, "process group", -1)
}

func (t *Table) signalMain(id uint64, signal int, what string, sign int) error {
	r := t.runs[id]
	if r == nil || r.mainPID == 0 {
		return os.ErrProcessDone
	}
	if err := unix.Kill(sign*r.mainPID, syscall.Signal(signal)); err != nil {
		return fmt.Errorf("cannot signal %s %d: %w", what, r.mainPID, err)
	}
	return nil
}

// Reap reaps every child that has ended, and calls each for it, in the order in which the kernel reports them. If trees is true,
// Reap also finds the processes that each main process has left behind; it does so before it reaps the main process. childless
// reports whether this process has no child left. Reap never blocks. The function each may call Spawn, Signal and SignalTree. If
// a tracer holds a dead main process, Reap reports its end immediately, and reaps it later as an orphan.
func (t *Table) Reap(trees bool, each func(Exit)) (childless bool) {
	for ends := 0; ; {
		pid, none := peek()
		if pid == 0 {
			pid = t.nextHeldByTracer()
		}
		if pid == 0 {
			return none
		}
		id := t.owned[pid]
		x := Exit{ID: id, PID: pid}
		if r := t.runs[id]; r != nil {
			if trees {
				ends++
				x.Leftover = t.hasLeftover(r, ends > 1)
				x.MaybeMembers = t.unknownOrphansSince(pid)
			}
			r.mainPID = 0
		} else if trees && len(t.runs) > len(t.owned) { // there are runs whose main process was reaped, and which Forget has not dropped
			if of := t.runByMark(pid); t.runs[of] != nil && t.runs[of].mainPID == 0 {
				x.OrphanRun = of
			}
		}
		delete(t.owned, pid)
		status, usage := reap(pid)
		x.Code = status.ExitStatus()
		if status.Signaled() {
			x.Code, x.Signal = -1, int(status.Signal())
		}
		if r := t.runs[id]; r != nil && r.cgroup != "" && x.Signal == int(unix.SIGKILL) {
			if kills, ok := oomKillsIn(r.cgroup); ok {
				x.OOM = new(kills > 0)
			}
		}
		x.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		x.MaxRSS = int64(usage.Maxrss) * 1024 //nolint:unconvert // 32 bits wide on 32-bit machines
		each(x)
	}
}

// Forget drops a run whose main process was reaped. Processes of the run that are still alive are then treated as orphans without
// a run.
func (t *Table) Forget(id uint64) {
	if r := t.runs[id]; r != nil && r.mainPID == 0 {
		delete(t.runs, id)
		delete(t.byMark, r.mark)
	}
}
