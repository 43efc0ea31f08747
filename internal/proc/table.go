// Package proc starts, signals and reaps processes. No other package of hinit forks or waits.
//
// A [Table] belongs to one goroutine, which alone spawns, signals and reaps. A PID in the table always means the same process,
// because the kernel reuses the number only after the table has reaped the process. The table examines a dead child before it
// reaps the child (waitid with WNOWAIT), and reports to which run the child belongs. A child that the table did not start is an
// orphan. The table reaps orphans too. The package owns no goroutine.
//
// The table finds the descendants of a service by attributes that they inherit. These are the process group, the session, a
// resource limit that marks the run, and an entry in the environment. It also remembers the parents that the last scan of /proc has shown. It never
// signals a process on a guess.
//
// The files: spawn.go starts a process, and setup.go checks and passes on its settings. table.go signals and reaps. tree.go and
// scan.go find the processes of a run. run_lookup.go finds the run of one process, and reads the confinement of a process and
// the peer of a socket. cgroup.go and memory.go read control groups and memory. child.go serves programs without a table.
package proc

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// Table holds the processes that hinit has started and not yet reaped. Only one goroutine may use it.
type Table struct {
	owned            map[int]uint64  // run numbers by the PID of the living main process
	runs             map[uint64]*run // runs by number, until Forget drops them
	devNull          *os.File
	tagNonce         string       // random text that tells the tags of this table from another hinit's tags
	signalsBlocked   bool         // hinit was started with blocked signals, which children must not inherit
	forkers          map[int]bool // threads of hinit that may have children: the oldest, and those that have started a process
	procfs           *scanner
	marker           marker
	ownOOMScore      int               // oom_score_adj of hinit
	runIDByMark      map[uint64]uint64 // run numbers by mark
	members          membership
	environ          environRead   // unused result of the last read of an environment
	environWaitTime  time.Duration // how long the present scan has waited for environments
	heldByTracer     []int         // processes that may be dead main processes in the hands of a tracer; nextHeldByTracer examines them
	tracerSearchedAt time.Time
	tracerUnsearched []int     // main processes that this search has not examined yet
	checkBudgetFrom  time.Time // findProgram may spend a share of the time since then on checks
	pathChecker      *fsutil.Actor
	slowServices     map[string]time.Time // time until which findProgram checks no paths of a service, by the name of the service
	raised           []*run               // runs whose oom_score_adj raiseAgain must raise again, oldest first
}

// run is the table's record of the processes of one run.
type run struct {
	id      uint64
	mark    uint64 // mark of the run's processes; 0 for none
	mainPID int    `reexec:"main"`
	group   int    // process group of the main process; the number stays valid while a known process is in the group
	session bool   // the main process also leads a session of the same number
	user    uint32
	cgroup  string // directory of the run's control group, or "" for none
	// oomKills counts out-of-memory kills in the control group that did not end this run: kills before the run, and kills that
	// explain the end of another run.
	oomKills uint64
	service  string    // name of the service
	oomScore string    `reexec:"-"` // oom_score_adj of the main process, which hinit set at the time raisedAt
	raisedAt time.Time `reexec:"-"`
}

// Exit describes a reaped child.
type Exit struct {
	ID              uint64 // number of the run; 0 for an orphan
	OrphanRun       uint64 // run of an orphan whose main process was reaped before; 0 if unknown
	PID             int
	Code            int   // exit code, -1 after a signal
	Signal          int   // the signal that ended the process, 0 after an exit
	OOM             *bool // after SIGKILL: whether an out-of-memory kill in the control group explains it; nil if unknown
	Leftover        bool  // other processes of the run are alive
	PossibleMembers []int // living orphans that may belong to this run or to another
	CPU             time.Duration
	MaxRSS          int64 // peak resident memory of the process, in bytes
}

// New returns an empty table. Unless hinit is PID 1, New makes it a subreaper (prctl(2), PR_SET_CHILD_SUBREAPER), so that
// orphans of its services become its children. New fails if the kernel forbids hinit to wait for children, because no
// supervisor can work then.
func New() (*Table, error) {
	if err := checkWaitAllowed(); err != nil {
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
	_, _ = rand.Read(nonce)
	t := &Table{
		owned: make(map[int]uint64), runs: make(map[uint64]*run), forkers: map[int]bool{os.Getpid(): true}, devNull: null, tagNonce: hex.EncodeToString(nonce),
		slowServices: make(map[string]time.Time), procfs: newScanner(), marker: newMarker(), ownOOMScore: ownOOMScore(), runIDByMark: make(map[uint64]uint64),
		members: membership{runsOfProcesses: make(map[identity]uint64), orphanRuns: make(map[identity]uint64)},
	}
	var mask, empty unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, nil, &mask)
	t.signalsBlocked = mask != empty
	return t, nil
}

// Signal signals the main process of a run. The error is os.ErrProcessDone if that process was reaped.
func (t *Table) Signal(id uint64, signal int) error { return t.signalMain(id, signal, "process", 1) }

// SignalGroup signals the process group of a run's main process. The error is os.ErrProcessDone if the process was reaped: the
// number may then belong to another group.
func (t *Table) SignalGroup(id uint64, signal int) error {
	return t.signalMain(id, signal, "process group", -1)
}

func (t *Table) signalMain(id uint64, signal int, target string, sign int) error {
	r := t.runs[id]
	if r == nil || r.mainPID == 0 {
		return os.ErrProcessDone
	}
	if err := unix.Kill(sign*r.mainPID, syscall.Signal(signal)); err != nil {
		return fmt.Errorf("cannot signal %s %d: %w", target, r.mainPID, err)
	}
	return nil
}

// Reap reaps every child that has ended, and calls each for it. If trees is set, Reap first finds out whether the dead process
// has left processes of its run behind, for Exit.Leftover. childless reports whether no child is left. Reap never blocks. each
// may call Spawn, Signal and SignalTree. If a tracer holds a dead main process, Reap reports its end now and reaps the process
// later, as an orphan.
func (t *Table) Reap(trees bool, each func(Exit)) (childless bool) {
	t.raiseAgain()
	ends := 0
	for {
		pid, none := findExitedChild()
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
				x.PossibleMembers = t.unknownOrphansSince(pid)
			}
			r.mainPID = 0
		} else if trees && len(t.runs) > len(t.owned) { // Forget has not dropped a run without main process
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
				x.OOM = new(kills > r.oomKills)
				for _, o := range t.runs {
					if *x.OOM && o.cgroup == r.cgroup { // the kill is explained, so it must not explain another end in this control group
						o.oomKills++
					}
				}
			}
		}
		x.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
		x.MaxRSS = int64(usage.Maxrss) * 1024 //nolint:unconvert // Maxrss is 32 bits wide on 32-bit machines
		each(x)
	}
}

// Forget drops a run whose main process was reaped. From then on its living processes count as orphans without a run.
func (t *Table) Forget(id uint64) {
	if r := t.runs[id]; r != nil && r.mainPID == 0 {
		delete(t.runs, id)
		delete(t.runIDByMark, r.mark)
	}
}

// Handover is the state that a table passes to the table of the new program when PID 1 re-executes itself. The new table
// reads everything else from the kernel.
type Handover struct {
	Nonce string
	Marks marker
	Runs  []run
	Known []member
}

type member struct {
	Process identity `reexec:"Who"`
	Run     uint64
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (t *Table) HandOver() Handover {
	s := Handover{Nonce: t.tagNonce, Marks: t.marker}
	for _, r := range t.runs {
		s.Runs = append(s.Runs, *r)
	}
	for who, id := range t.members.runsOfProcesses {
		s.Known = append(s.Known, member{who, id})
	}
	return s
}

// TakeOver makes a table from the state s that HandOver returned before a re-execution. The processes in s are still children
// of PID 1. The next Reap reports main processes that have ended since. The old program may have reaped a main process without
// reporting its end; MainPID then returns 0.
func TakeOver(s Handover) (*Table, error) {
	t, err := New()
	if err != nil {
		return nil, err
	}
	t.tagNonce, t.marker = s.Nonce, s.Marks
	for _, r := range s.Runs {
		if r.mainPID != 0 {
			if _, reaped := findExitedChildOf(unix.P_PID, r.mainPID); reaped {
				r.mainPID = 0
			}
		}
		t.runs[r.id] = &r
		if r.mainPID != 0 {
			t.owned[r.mainPID] = r.id
		}
		if r.mark != 0 {
			t.runIDByMark[r.mark] = r.id
		}
	}
	t.members.runsOfProcesses = make(map[identity]uint64, len(s.Known))
	for _, m := range s.Known {
		t.members.runsOfProcesses[m.Process] = m.Run
	}
	return t, nil
}

// MainPID returns the PID of the main process of a run, or 0 if that process was reaped.
func (t *Table) MainPID(id uint64) int {
	if r := t.runs[id]; r != nil {
		return r.mainPID
	}
	return 0
}

// sigchldInfo is the part of siginfo_t that the kernel fills in for SIGCHLD (sigaction(2)). unix.Siginfo hides these fields. On
// 64-bit machines the union after the three ints is aligned to 8 bytes. codes holds si_errno, which is 0 here, and si_code;
// MIPS swaps the two.
type sigchldInfo struct {
	_     int32
	codes [2]int32
	_     [(unsafe.Sizeof(uintptr(0)) - 4) / 4]int32
	pid   int32
	uid   uint32
	_     [unsafe.Sizeof(unix.Siginfo{}) - 5*4 - (unsafe.Sizeof(uintptr(0)) - 4)]byte
}

// cldDumped is the highest si_code for the end of a child. Higher codes mean that a signal stopped or continued it.
const cldDumped = 3

// checkWaitAllowed returns an error if a seccomp(2) filter forbids hinit to wait for children. It needs no child for the test.
// The answer stays valid, because a process can't drop such a filter.
func checkWaitAllowed() error {
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err != nil && !errors.Is(err, unix.ECHILD) {
		return seccompError("waitid", err)
	}
	// the error is ECHILD, because no process is its own child
	if _, err := unix.Wait4(os.Getpid(), nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		return seccompError("wait4", err)
	}
	return nil
}

func seccompError(call string, err error) error {
	return fmt.Errorf("cannot wait for processes: %s: %w; allow waitid and wait4 in the seccomp profile of the container (docker run --security-opt seccomp=FILE)", call, err)
}

func findExitedChild() (pid int, childless bool) { return findExitedChildOf(unix.P_ALL, 0) }

// findExitedChildOf returns the PID of a child that has ended, without reaping it, or 0. childless reports whether hinit has no
// child at all. kind and id select the children as in waitid(2). It never blocks.
func findExitedChildOf(kind, id int) (pid int, childless bool) {
	for {
		var info sigchldInfo
		// __WALL is not needed. The only clone child comes from the Go runtime's test for pidfd support, and the runtime waits
		// for it.
		err := unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case err == nil && max(info.codes[0], info.codes[1]) > cldDumped:
			// A child can make hinit its tracer (ptrace(2), PTRACE_TRACEME). Then waitid also reports its stops, and a stop
			// would hide the end of other children. This call takes the report of the stop.
			_ = unix.Waitid(unix.P_PID, int(info.pid), nil, unix.WSTOPPED|unix.WNOHANG, nil)
		case err == nil:
			return int(info.pid), false
		default:
			return 0, true
		}
	}
}

// AnyChildStopped reports whether a signal such as SIGSTOP has stopped any child. It never blocks.
func AnyChildStopped() bool {
	var info sigchldInfo
	err := unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.pid != 0
}

// reap reaps a child that has ended, which frees its PID. If a tracer still holds the child, its exit status is unknown, and
// the exit code becomes -1.
func reap(pid int) (status unix.WaitStatus, usage unix.Rusage) {
	if reaped, _ := unix.Wait4(pid, &status, unix.WNOHANG, &usage); reaped == 0 {
		status = 0x7f
	}
	return status, usage
}
