package reexec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/version"
)

// StateFormat is the version of the encoded state. It changes when another version of hinit would misunderstand the state. A new
// key alone does not change it.
const StateFormat = 3

// SelfExe leads to the program of this process, even after its file was replaced or removed.
const SelfExe = "/proc/self/exe"

// Host is the container whose state passes from one program to the next. Package container implements it.
type Host interface {
	// LockConfig locks the configuration of the container until the call of release. It waits for the end of a change, until
	// ctx ends. The error says why no re-execution is possible now.
	LockConfig(ctx context.Context) (release func(), err error)
	// TryProgram runs a program as a child, and returns its exit code and the last line of its standard output.
	TryProgram(ctx context.Context, path string, argv ...string) (code int, answer string, err error)
	// Quiesce waits for operations that must not be interrupted. Until wake is called, no new operation begins. wake is never
	// nil. After a fault, Quiesce ignores errors and returns nil.
	Quiesce(afterPanic bool) (wake func(), err error)
	// RunInLoop calls f in the supervisor's goroutine, between two events. The error means that the supervisor has ended.
	RunInLoop(f func()) error
	// HandOver returns a pointer to the state for the next program, which contains past. The state does not change until the
	// caller calls thaw, which is never nil. The supervisor's goroutine calls HandOver: through RunInLoop, or after a panic of
	// the supervisor. afterPanic means that a panic is the cause.
	HandOver(past PastGenerations, afterPanic bool) (state any, thaw func(), err error)
	// TakePending removes and returns the signals that have arrived and were not handled. PutBack queues such signals
	// again.
	TakePending() []syscall.Signal
	PutBack(late []syscall.Signal)
	// LastEvents returns the last events of the history as text, for the report of a fault.
	LastEvents() string
	// StoreReport writes the report of a fault to a file that operators can find.
	StoreReport(name string, report []byte) (path string, err error)
	// Say writes a line to the container's log.
	Say(line string)
	// End shuts the container down in the regular way, with this exit code.
	End(code int, reason string)
}

// PastGenerations describes earlier programs for the next program.
type PastGenerations struct {
	Format int
	Number int
	Exe    string      // path of hinit's binary
	Comm   string      // name of the process, which execve would change
	Cause  string      // why the program is replaced, in words
	Faults []time.Time // faults of the last minute that caused a re-execution
}

// Generation is the time in which this process runs one program: until the next re-execution. Any goroutine may call its
// methods.
type Generation struct {
	Number       int
	Version      string // version of this program
	Exe          string // path of hinit's binary
	ID           string // identity of the file Exe at the start of this program, see [FileID]
	host         Host
	signals      []syscall.Signal
	recentFaults atomic.Value // times of the faults of the last minute that caused a re-execution: a []time.Time

	bootDone       atomic.Bool  // the boot has ended, so there is a state to hand over
	requestRunning atomic.Bool  // a requested re-execution is under way
	handlingFault  atomic.Bool  // a fault is being handled
	shuttingDown   atomic.Bool  // the container is shutting down because of a fault
	refusalReason  atomic.Value // why the last requested re-execution failed: a string
}

// FirstGeneration returns the first Generation of a container. signals are the signals that host handles.
func FirstGeneration(host Host, signals []syscall.Signal) *Generation {
	exe, _ := os.Readlink(SelfExe) // without /proc no re-execution is possible anyway
	return &Generation{Number: 1, Version: version.Get().String(), Exe: strings.TrimSuffix(exe, " (deleted)"), ID: FileID(SelfExe), host: host, signals: signals}
}

// SetPast makes g the successor of the Generation that handed over past.
func (g *Generation) SetPast(past PastGenerations) {
	g.Number, g.Exe = past.Number+1, past.Exe
	g.recentFaults.Store(past.Faults)
	g.MarkBootDone()
}

// DecodeState decodes handed.State into the variable to which state points. past must point to the field of that variable with
// the PastGenerations. An error means, for example, that the old program has another StateFormat. DecodeState also gives the
// process its old name.
func DecodeState(handed *HandedState, state any, past *PastGenerations) error {
	if err := NewCodec().Decode(handed.State, state); err != nil {
		return err
	}
	if past.Format != StateFormat {
		return fmt.Errorf("it speaks format %d of the handover and this one %d", past.Format, StateFormat)
	}
	_ = os.WriteFile("/proc/self/comm", []byte(past.Comm), 0) // execve has replaced the name by the name of the executed link
	return nil
}

// ResumeMessage returns a line for the log after a re-execution, with its reason and the time in which signals were lost.
func (g *Generation) ResumeMessage(past PastGenerations, handed *HandedState) string {
	text := fmt.Sprintf("image %d (%s) continues: %s; deaf to signals for %v", g.Number, version.Get(), past.Cause, handed.SignalsLost.Round(10*time.Microsecond))
	if handed.Frozen != nil {
		text += fmt.Sprintf("; process numbers were short, so every process stood still for %v", handed.FrozenFor.Round(100*time.Microsecond))
	}
	return text
}

// MarkBootDone records that the boot has ended, so that a re-execution is possible.
func (g *Generation) MarkBootDone() { g.bootDone.Store(true) }

// Failed reports whether the container is shutting down because of a fault.
func (g *Generation) Failed() bool { return g.shuttingDown.Load() }

// Refusal says why the last requested re-execution failed; "" without a failure.
func (g *Generation) Refusal() string {
	reason, _ := g.refusalReason.Load().(string)
	return reason
}

// Request checks the program file binary ("" for hinit's own), and starts the trial and the re-execution in a goroutine. It
// returns the number of the present Generation, and does not wait for the result. Either the next Generation begins, or Refusal
// says why the re-execution failed.
func (g *Generation) Request(ctx context.Context, binary string) (number int, err error) {
	binary = cmp.Or(binary, g.Exe)
	if !g.bootDone.Load() {
		return 0, errors.New("the boot is not done yet; try again")
	}
	var program *os.File
	if err := blocking.Within(ctx, blocking.Foreign, "looking at the binary", func() (err error) {
		program, err = openProgram(binary)
		return err
	}); err != nil {
		return 0, err
	}
	if !g.requestRunning.CompareAndSwap(false, true) {
		_ = program.Close()
		return 0, errors.New("hinit is being re-executed already")
	}
	release, err := g.host.LockConfig(ctx)
	if err != nil {
		_ = program.Close()
		g.requestRunning.Store(false)
		return 0, err
	}
	g.refusalReason.Store("")
	guard.Go("re-executing", func() {
		defer g.requestRunning.Store(false)
		defer release()
		defer program.Close()
		path := "/proc/self/fd/" + strconv.Itoa(int(program.Fd())) // another program may be at binary by now, and it is not checked
		err := g.checkHandover(path)
		if err == nil {
			_, err = g.replaceProgram(path, fmt.Sprintf("asked to (from %s)", version.Get()), false)
		}
		err = fmt.Errorf("%q: %w", binary, err)
		g.refusalReason.Store(err.Error())
		g.host.Say(fmt.Sprintf("[hinit] cannot become another image: %v; the old program continues", err))
	})
	return g.Number, nil
}

// checkHandover returns an error unless the program at path can take over from this one. Any other program would act as if the
// container had just started, or end it. The program only prints the format of the handover that it reads. The program that
// runs now needs no trial, for which there may be no free PID.
func (g *Generation) checkHandover(path string) error {
	if FileID(path) == g.ID {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryTimeout)
	defer cancel()
	switch code, answer, err := g.host.TryProgram(ctx, path, "hinit", "version", "--handover"); {
	case err != nil:
		return fmt.Errorf("cannot try the program: %w", err)
	case code != 0 || answer != strconv.Itoa(StateFormat):
		return fmt.Errorf("the program takes over no state of format %d: it answers %q, exit code %d; restart the container for it", StateFormat, answer, code)
	}
	return nil
}

// replaceProgram executes another program. It returns only after a failure, when it has undone all steps. over means that the
// supervisor has ended.
func (g *Generation) replaceProgram(path, cause string, afterPanic bool) (over bool, err error) {
	wake, err := g.host.Quiesce(afterPanic)
	defer wake()
	if err != nil {
		return false, err
	}
	if ended := g.host.RunInLoop(func() { err = g.becomeProgram(path, cause, afterPanic) }); ended != nil {
		return true, ended
	}
	return false, err
}

// becomeProgram is the part of replaceProgram that must run in the supervisor's goroutine.
func (g *Generation) becomeProgram(path, cause string, afterPanic bool) error {
	name, _ := os.ReadFile("/proc/self/comm")
	faults, _ := g.recentFaults.Load().([]time.Time)
	past := PastGenerations{StateFormat, g.Number, g.Exe, strings.TrimSpace(string(name)), cause, faults}
	state, thaw, err := g.host.HandOver(past, afterPanic)
	defer thaw()
	if err != nil {
		return err
	}
	codec := NewCodec()
	var data json.RawMessage
	if data, err = codec.Encode(state); err != nil {
		return fmt.Errorf("cannot hand over: %w", err)
	}
	p := Program{
		Path: path, Argv: os.Args, Env: os.Environ(), OpenDescriptors: codec.Descriptors(), State: data, Signals: g.signals,
		TakeUnhandledSignals: g.host.TakePending,
	}
	err = p.Execute()
	g.host.PutBack(p.Unhandled)
	return err
}

const (
	// ExitFault is the exit code of the container when hinit can't continue after a panic of its own (EX_SOFTWARE of
	// sysexits(3)).
	ExitFault   = 70
	faultWindow = time.Minute
	// tryTimeout limits how long a program may take to print the handover format that it reads.
	tryTimeout = 10 * time.Second
	// reportTimeout is how long hinit waits for the report of a fault to reach the console and the disk.
	reportTimeout = time.Second
)

// Panicked handles a panic in any goroutine but the supervisor's. The goroutine that has panicked calls it. Panicked
// re-executes hinit, and the new program starts that goroutine again. If that is impossible, Panicked shuts the container down.
func (g *Generation) Panicked(doing string, value any, stack []byte) {
	if !g.handlingFault.CompareAndSwap(false, true) {
		return // another fault is being handled already
	}
	g.writeReport(doing, value, stack)
	err := g.recordFault()
	if err == nil {
		over := false
		err = retryWhileFewPIDs(func() error {
			over, err = g.replaceProgram(SelfExe, faultCause(doing), true)
			return err
		})
		if over {
			return
		}
	}
	g.giveUp(err)
	g.host.End(ExitFault, "hinit has a fault")
}

// SupervisorPanicked handles a panic of the supervisor's loop, in its goroutine. It re-executes hinit, and returns only if
// that is impossible. The loop must then not run again.
func (g *Generation) SupervisorPanicked(value any, stack []byte) {
	const doing = "supervising"
	g.handlingFault.Store(true)
	g.writeReport(doing, value, stack)
	err := g.recordFault()
	if err == nil {
		err = retryWhileFewPIDs(func() error { return g.becomeProgram(SelfExe, faultCause(doing), true) })
	}
	g.giveUp(err)
}

// retryWhileFewPIDs calls try until it succeeds or fails with another error than errTooFewPIDs, for at most pidWaitLimit. It
// returns the last error.
func retryWhileFewPIDs(try func() error) error {
	end := time.Now().Add(pidWaitLimit)
	for {
		if err := try(); !errors.Is(err, errTooFewPIDs) || time.Now().After(end) {
			return err
		}
		<-time.After(pidWaitLimit / 20)
	}
}

func faultCause(doing string) string { return "hinit had a fault while " + doing }

func (g *Generation) giveUp(err error) {
	runWithTimeout(func() { fmt.Fprintf(os.Stderr, "[hinit] cannot continue: %v; stopping the container\n", err) })
	g.shuttingDown.Store(true)
}

// recordFault records a fault. The error says why hinit must not re-execute itself after it.
func (g *Generation) recordFault() error {
	faults, _ := g.recentFaults.Load().([]time.Time)
	if slices.ContainsFunc(faults, func(at time.Time) bool { return time.Since(at) < faultWindow }) {
		return errors.New("hinit had another fault less than a minute ago")
	}
	if !g.bootDone.Load() {
		return errors.New("the boot was not done")
	}
	g.recentFaults.Store([]time.Time{time.Now()})
	return nil
}

// writeReport writes the report of a fault to standard error and to a file. It waits for at most reportTimeout.
func (g *Generation) writeReport(doing string, value any, stack []byte) {
	now := time.Now()
	var b bytes.Buffer
	fmt.Fprintf(&b, "[hinit] panic while %s: %v\nhinit %s, image %d, pid %d, %s\n\n%s\nlast events:\n%s",
		doing, value, version.Get(), g.Number, os.Getpid(), now.Format(time.RFC3339Nano), stack, g.host.LastEvents())
	runWithTimeout(func() {
		_, _ = os.Stderr.Write(b.Bytes()) // the report has no other place, so ignore the error
	}, func() {
		path, err := g.host.StoreReport("hinit-crash-"+now.UTC().Format("20060102T150405.000Z")+".log", b.Bytes())
		if err != nil {
			g.host.Say(fmt.Sprintf("[hinit] cannot keep the report of the fault on the volume: %v", err))
		} else {
			g.host.Say("[hinit] the report of the fault is in " + path)
		}
	})
}

// runWithTimeout calls the functions in goroutines, and waits for them at most reportTimeout, because the console and the disk
// may not answer.
func runWithTimeout(write ...func()) {
	var all sync.WaitGroup
	for _, f := range write {
		all.Go(f) // don't use package guard, because a panic here could not be reported
	}
	pause.AtMost(reportTimeout, guard.GoWithDone("waiting for a report", all.Wait))
}
