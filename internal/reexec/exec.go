package reexec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/shim/agentuser"
)

// StateVariable is the environment variable with the descriptor number of the memory file that holds the state.
const StateVariable = "HINIT_HANDOVER"

// envelope is the content of the memory file.
type envelope struct {
	PID     int              `json:"pid"`
	State   json.RawMessage  `json:"state"`
	Signals []syscall.Signal `json:"signals"`
	// time since which SIGHUP, SIGINT, SIGQUIT and SIGTERM are lost, in ns of CLOCK_MONOTONIC
	SignalsLostSince int64 `json:"deaf"`
}

// Program is the program that Execute runs in place of this one.
type Program struct {
	Path            string          // path of the executable
	Argv            []string        // arguments of the program, including argv[0]
	Env             []string        // environment, without StateVariable and FrozenVariable, which TakeState removes and Execute adds
	OpenDescriptors []int           // descriptors that stay open besides 0, 1 and 2
	State           json.RawMessage // state for the new program, as JSON
	// Signals lists the signals that the new program handles. After the call of TakeUnhandledSignals they wait in the kernel for
	// the new program. But the Go runtime unblocks SIGHUP, SIGINT, SIGQUIT and SIGTERM early (runtime, blockableSig). These four
	// are lost for about a millisecond, until the new program handles them.
	Signals []syscall.Signal
	// TakeUnhandledSignals returns the signals that this program has received and not handled. Execute calls it as late as
	// possible, and the new program gets them from TakeState.
	TakeUnhandledSignals func() []syscall.Signal
	Unhandled            []syscall.Signal // after a failure of Execute, the signals that TakeUnhandledSignals has returned
}

// Execute executes the program. It returns only after a failure. No other goroutine may start a process meanwhile, because the
// child would inherit the descriptors.
func (p *Program) Execute() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	memory, err := p.makeMemory()
	if err != nil {
		return err
	}
	defer memory.Close()
	keep := append(slices.Clone(p.OpenDescriptors), int(memory.Fd()))
	defer func() { _ = agentuser.CloseOnExec() }()
	for _, fd := range keep {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("cannot hand over descriptor %d: %w", fd, err)
		}
	}
	frozen, err := reservePIDs()
	if err != nil {
		return err
	}
	defer frozen.Thaw()
	undo, err := blockSignals(p.Signals)
	if err != nil {
		return err
	}
	defer undo()
	if err := p.sealMemory(memory, monotonic()); err != nil {
		return err
	}
	env := append(slices.Clone(p.Env), StateVariable+"="+strconv.Itoa(int(memory.Fd())))
	if frozen != nil {
		env = append(env, FrozenVariable+"="+frozen.String())
	}
	return fmt.Errorf("cannot execute the program: %w", syscall.Exec(p.Path, p.Argv, env))
}

// blockSignals makes signals wait in the kernel for the new program, if they can wait. undo restores the old state; call it on
// the same thread.
func blockSignals(signals []syscall.Signal) (undo func(), err error) {
	var block, old unix.Sigset_t
	for _, s := range signals {
		const bits = 8 * int(unsafe.Sizeof(block.Val[0]))
		block.Val[(int(s)-1)/bits] |= 1 << ((int(s) - 1) % bits)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old); err != nil {
		return nil, fmt.Errorf("cannot hold signals back: %w", err)
	}
	var ignore proc.SignalAction
	*(*uintptr)(unsafe.Pointer(&ignore)) = 1 // SIG_IGN; the handler is the first field, except on MIPS
	var before [len(alwaysUnblocked)]proc.SignalAction
	for i, s := range alwaysUnblocked {
		before[i] = proc.ExchangeAction(s, ignore)
	}
	return func() {
		for i, s := range alwaysUnblocked {
			proc.ExchangeAction(s, before[i])
		}
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	}, nil
}

// alwaysUnblocked lists the signals that the Go runtime never blocks.
var alwaysUnblocked = [4]syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}

// makeMemory creates the memory file and writes the envelope, without its last part, which sealMemory writes.
func (p *Program) makeMemory() (*os.File, error) {
	fd, err := unix.MemfdCreate("hinit-handover", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot make memory for the handover: %w", err)
	}
	memory := os.NewFile(uintptr(fd), "hinit-handover")
	if _, err := fmt.Fprintf(memory, `{"pid":%d,"state":%s`, os.Getpid(), p.State); err != nil {
		_ = memory.Close()
		return nil, fmt.Errorf("cannot write the state for the handover: %w", err)
	}
	return memory, nil
}

// sealMemory writes the last part of the envelope, and makes the file immutable. signalsLost is the value of SignalsLostSince.
func (p *Program) sealMemory(memory *os.File, signalsLost int64) error {
	p.Unhandled = p.TakeUnhandledSignals()
	end, err := json.Marshal(p.Unhandled)
	if err == nil {
		_, err = fmt.Fprintf(memory, `,"signals":%s,"deaf":%d}`, end, signalsLost)
	}
	if err != nil {
		return fmt.Errorf("cannot write the state for the handover: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(memory.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("cannot seal the state for the handover: %w", err)
	}
	return nil
}

// monotonic returns CLOCK_MONOTONIC in nanoseconds. The clock runs on across execve(2).
func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano()
}

// HandedState is the state from the previous program.
type HandedState struct {
	State       json.RawMessage
	Signals     []syscall.Signal // signals that the previous program has received but not handled
	SignalsLost time.Duration    // how long SIGHUP, SIGINT, SIGQUIT and SIGTERM were lost
	Frozen      *Frozen          // processes that were frozen for the re-execution; may be nil
	FrozenFor   time.Duration    // how long these processes were frozen; the caller of [Frozen.Thaw] sets it
}

// Threads returns how many threads this program may create, and how many processors it may use. These are limited only after a
// re-execution with few PIDs; otherwise both are 0. handed may be nil.
func (handed *HandedState) Threads() (threads, processors int) {
	if handed == nil || handed.Frozen == nil {
		return 0, 0
	}
	return handed.Frozen.Threads, handed.Frozen.Processors
}

// ErrNoState is the error of TakeState if no program was running before this one.
var ErrNoState = errors.New("nothing was handed over")

// TakeState returns the state from the previous program, or ErrNoState without a previous program. With any other error, the
// result may still have frozen processes, which the caller must thaw. TakeState works once: it removes StateVariable from the
// environment, so that no child gets it. It also makes sure that no child gets a file that this program has inherited, from the
// previous program or from the container engine.
func TakeState() (out *HandedState, err error) {
	_ = agentuser.CloseOnExec()
	received := monotonic()
	value, there := os.LookupEnv(StateVariable)
	frozen := parseFrozen(os.Getenv(FrozenVariable))
	_, _ = os.Unsetenv(StateVariable), os.Unsetenv(FrozenVariable) // Unsetenv can't fail, because the names are valid
	if !there {
		return nil, ErrNoState
	}
	fd, err := strconv.Atoi(value)
	if err != nil || fd < 3 || !isMemory(fd) {
		return nil, ErrNoState // another program has set the variable, for example an outer init
	}
	out = &HandedState{Frozen: frozen}
	memory := os.NewFile(uintptr(fd), "hinit-handover")
	defer memory.Close()
	var in envelope
	if err := json.NewDecoder(io.NewSectionReader(memory, 0, math.MaxInt64)).Decode(&in); err != nil {
		return out, fmt.Errorf("cannot understand what was handed over: %w", err)
	}
	if in.PID != os.Getpid() {
		return nil, ErrNoState
	}
	out.State, out.Signals, out.SignalsLost = in.State, in.Signals, time.Duration(received-in.SignalsLostSince)
	return out, nil
}

// isMemory reports whether a descriptor is a memory file that sealMemory has sealed.
func isMemory(fd int) bool {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err == nil && !strings.HasPrefix(name, "/memfd:hinit-handover") {
		return false
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_WRITE != 0
}
