package reexec

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
	"hinit/internal/version"
)

// Format is the version of the encoded state. It changes when another version of hinit could misunderstand the state. A new key
// alone does not change it.
const Format = 2

// Self is the path of this process's program. It works even after the file was replaced or removed.
const Self = "/proc/self/exe"

// Host is the container whose state passes from one program to the next.
type Host interface {
	// Claim locks the configuration of the container against changes until release is called. It waits for a change that is under
	// way until ctx ends. An error says why no re-execution is possible now.
	Claim(ctx context.Context) (release func(), err error)
	// Quiesce waits for operations that must not be interrupted, and prevents new ones until wake is called. wake is never nil.
	// After a fault, Quiesce does as much as it can, and returns no error.
	Quiesce(fault bool) (wake func(), err error)
	// RunInLoop calls f in the supervisor's goroutine, between two events. An error means that the supervisor has ended.
	RunInLoop(f func()) error
	// HandOver returns a pointer to the state for the next generation, which must include past. The state does not change until
	// the caller calls thaw, which is never nil. HandOver is called in the supervisor's goroutine: in RunInLoop, or after a panic
	// of the supervisor. fault is true if a panic is the cause.
	HandOver(past PastGenerations, fault bool) (state any, thaw func(), err error)
	// TakePending removes and returns the signals that were delivered and not handled. PutBack queues the given signals again.
	TakePending() []syscall.Signal
	PutBack(late []syscall.Signal)
	// LastEvents returns the last events of the supervisor's history as text, for the report of a fault.
	LastEvents() string
	// StoreReport stores the report of a fault in a file that people can find.
	StoreReport(name string, report []byte) (path string, err error)
	// Say writes a line to the container's log.
	Say(line string)
	// End shuts the container down in the regular way.
	End(code int, reason string)
}

// PastGenerations tells the next generation about this generation and earlier generations.
type PastGenerations struct {
	Format int
	Number int
	Exe    string      // path of hinit's program file
	Comm   string      // name of the process
	Cause  string      // why the program is replaced, for people
	Faults []time.Time // times of faults within the last minute that caused a re-execution
}

// Generation is the period in which this process runs one program: from the program's execution to the next re-execution. Its
// methods may be called from any goroutine.
type Generation struct {
	Number  int
	Version string // version of this program
	Exe     string // path of hinit's program file
	ID      string // identity of that file at the start of this generation, see [FileID]
	host    Host
	signals []syscall.Signal
	faults  []time.Time // used only by the goroutine that handles a fault

	bootDone       atomic.Bool  // the boot is over, so that there is a state to hand over
	requestRunning atomic.Bool  // a requested re-execution is in progress
	handlingFault  atomic.Bool  // a fault is being handled
	shuttingDown   atomic.Bool  // the container is shutting down because of a fault
	refused        atomic.Value // why the last requested re-execution has failed: a string
}

// First returns the first generation of a container. signals are the signals that host handles.
func First(host Host, signals []syscall.Signal) *Generation {
	exe, _ := os.Readlink(Self) // without /proc no re-execution is possible anyway
	return &Generation{Number: 1, Version: version.Get().String(), Exe: strings.TrimSuffix(exe, " (deleted)"), ID: FileID(Self), host: host, signals: signals}
}

// SetPast makes g the successor of the generation that handed over past.
func (g *Generation) SetPast(past PastGenerations) {
	g.Number, g.Exe, g.faults = past.Number+1, past.Exe, past.Faults
	g.MarkBootDone()
}

// DecodeState decodes taken.State into the variable that state points to. past must point to the part of this variable that
// describes the old generation. DecodeState fails if the old generation used another format. It also restores the name of the
// process.
func DecodeState(taken *HandedState, state any, past *PastGenerations) error {
	if err := NewCodec().Decode(taken.State, state); err != nil {
		return err
	}
	if past.Format != Format {
		return fmt.Errorf("it speaks format %d of the handover and this one %d", past.Format, Format)
	}
	_ = os.WriteFile("/proc/self/comm", []byte(past.Comm), 0) // execve has replaced the name by the name of the executed link
	return nil
}

// ResumeMessage returns the line for the log after a re-execution: its cause, and how long signals were lost.
func (g *Generation) ResumeMessage(past PastGenerations, taken *HandedState) string {
	text := fmt.Sprintf("image %d (%s) goes on: %s; deaf to signals for %v", g.Number, version.Get(), past.Cause, taken.SignalsLost.Round(10*time.Microsecond))
	if taken.Halted != nil {
		text += fmt.Sprintf("; process numbers were short, so every process stood still for %v", taken.HaltedFor.Round(100*time.Microsecond))
	}
	return text
}

// MarkBootDone records that the boot is over, so that a re-execution is possible.
func (g *Generation) MarkBootDone() { g.bootDone.Store(true) }

// Failed reports whether the container shuts down because of a fault.
func (g *Generation) Failed() bool { return g.shuttingDown.Load() }

// Refusal returns the reason why the last requested re-execution failed, or "" if it has not failed.
func (g *Generation) Refusal() string {
	reason, _ := g.refused.Load().(string)
	return reason
}

// Request checks whether this process can execute the program file binary, and starts the re-execution in a goroutine. An empty
// binary means the file of this program. Request returns the number of this generation. It doesn't wait for the result: either
// the next generation begins, or Refusal returns the reason of the failure.
func (g *Generation) Request(ctx context.Context, binary string) (number int, err error) {
	binary = cmp.Or(binary, g.Exe)
	if !g.bootDone.Load() {
		return 0, errors.New("the boot is not done yet; try again")
	}
	if err := blocking.Within(ctx, blocking.Foreign, "looking at the binary", func() error { return Check(binary) }); err != nil {
		return 0, err
	}
	if !g.requestRunning.CompareAndSwap(false, true) {
		return 0, errors.New("hinit is being re-executed already")
	}
	release, err := g.host.Claim(ctx)
	if err != nil {
		g.requestRunning.Store(false)
		return 0, err
	}
	g.refused.Store("")
	guard.Go("re-executing", func() {
		defer g.requestRunning.Store(false)
		defer release()
		_, err := g.replaceProgram(binary, fmt.Sprintf("asked to (from %s)", version.Get()), false)
		g.refused.Store(err.Error())
		g.host.Say(fmt.Sprintf("[hinit] cannot become another image: %v; everything goes on as it was", err))
	})
	return g.Number, nil
}

// replaceProgram executes another program. It returns only after a failure, with everything as it was before. The result over
// reports whether the supervisor has ended before the re-execution.
func (g *Generation) replaceProgram(path, cause string, fault bool) (over bool, err error) {
	wake, err := g.host.Quiesce(fault)
	defer wake()
	if err != nil {
		return false, err
	}
	if ended := g.host.RunInLoop(func() { err = g.becomeProgram(path, cause, fault) }); ended != nil {
		return true, ended
	}
	return false, err
}

// becomeProgram does the part of replaceProgram that runs in the supervisor's goroutine. It returns only after a failure.
func (g *Generation) becomeProgram(path, cause string, fault bool) error {
	name, _ := os.ReadFile("/proc/self/comm")
	past := PastGenerations{Format, g.Number, g.Exe, strings.TrimSpace(string(name)), cause, g.faults}
	state, thaw, err := g.host.HandOver(past, fault)
	defer thaw()
	if err != nil {
		return err
	}
	codec := NewCodec()
	var data json.RawMessage
	if data, err = codec.Encode(state); err != nil {
		return fmt.Errorf("cannot hand over: %w", err)
	}
	var late []syscall.Signal
	p := Program{
		Path: path, Argv: os.Args, Env: os.Environ(), OpenDescriptors: codec.Descriptors(), State: data, Signals: g.signals,
		TakeUnhandled: func() []syscall.Signal {
			late = g.host.TakePending()
			return late
		},
	}
	err = p.Execute()
	g.host.PutBack(late)
	return err
}

const (
	// ExitFault is the container's exit code when hinit can't continue after its own panic (EX_SOFTWARE of sysexits(3)).
	ExitFault = 70
	// faultWindow is the time after a fault in which a second fault ends the container.
	faultWindow = time.Minute
	// reportTime is the maximum time that hinit waits until the report of a fault is written to the console and the disk.
	reportTime = time.Second
)

// Panicked handles a panic in any goroutine except the supervisor's. The goroutine that panicked calls it. Panicked re-executes
// hinit, which starts the goroutine again in the new program. If that is impossible, it shuts down the container.
func (g *Generation) Panicked(doing string, value any, stack []byte) {
	if !g.handlingFault.CompareAndSwap(false, true) {
		return // another fault is already being handled
	}
	g.writeReport(doing, value, stack)
	err := g.countFault()
	if err == nil {
		over := false
		err = retryWhileFewPIDs(func() error {
			over, err = g.replaceProgram(Self, faultCause(doing), true)
			return err
		})
		if over {
			return
		}
	}
	g.giveUp(err)
	g.host.End(ExitFault, "hinit has a fault")
}

// SupervisorPanicked handles a panic of the supervisor's loop, in the loop's goroutine. It re-executes hinit. It returns only if
// that is impossible; the loop must not run again.
func (g *Generation) SupervisorPanicked(value any, stack []byte) {
	const doing = "supervising"
	g.handlingFault.Store(true)
	g.writeReport(doing, value, stack)
	err := g.countFault()
	if err == nil {
		err = retryWhileFewPIDs(func() error { return g.becomeProgram(Self, faultCause(doing), true) })
	}
	g.giveUp(err)
}

// retryWhileFewPIDs calls try, and returns its error. While too few PIDs are free for the new program's threads, it calls try
// again, for at most pidWaitLimit.
func retryWhileFewPIDs(try func() error) error {
	for end := time.Now().Add(pidWaitLimit); ; <-time.After(pidWaitLimit / 20) {
		if err := try(); !errors.Is(err, errTooFewPIDs) || time.Now().After(end) {
			return err
		}
	}
}

func faultCause(doing string) string { return "hinit had a fault while " + doing }

func (g *Generation) giveUp(err error) {
	fmt.Fprintf(os.Stderr, "[hinit] cannot go on: %v; stopping the container\n", err)
	g.shuttingDown.Store(true)
}

// countFault counts a fault. It returns an error if hinit must not re-execute itself after this fault.
func (g *Generation) countFault() error {
	now := time.Now()
	for _, at := range g.faults {
		if now.Sub(at) < faultWindow {
			return errors.New("hinit had another fault less than a minute ago")
		}
	}
	if !g.bootDone.Load() {
		return errors.New("the boot was not done")
	}
	g.faults = []time.Time{now}
	return nil
}

// writeReport writes the report of a fault to standard error and to a file. It waits for at most reportTime.
func (g *Generation) writeReport(doing string, value any, stack []byte) {
	now := time.Now()
	var b bytes.Buffer
	fmt.Fprintf(&b, "[hinit] panic while %s: %v\nhinit %s, image %d, pid %d, %s\n\n%s\nlast events:\n%s",
		doing, value, version.Get(), g.Number, os.Getpid(), now.Format(time.RFC3339Nano), stack, g.host.LastEvents())
	written := make(chan struct{}, 2)
	go func() { // without package guard, because a panic here could not be reported
		_, _ = os.Stderr.Write(b.Bytes()) // errors don't matter: hinit has no other place for the report
		written <- struct{}{}
	}()
	go func() {
		path, err := g.host.StoreReport("hinit-crash-"+now.UTC().Format("20060102T150405.000Z")+".log", b.Bytes())
		if err != nil {
			g.host.Say(fmt.Sprintf("[hinit] cannot keep the report of the fault on the volume: %v", err))
		} else {
			g.host.Say("[hinit] the report of the fault is in " + path)
		}
		written <- struct{}{}
	}()
	patience := time.After(reportTime)
	for range cap(written) {
		select {
		case <-written:
		case <-patience:
			return
		}
	}
}
