package reexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/guard"
	"hinit/internal/version"
)

// Format is the version of what is handed over. It changes when a successor could misunderstand that; new keys don't change it.
const Format = 2

// Self is the program of this process, also when its file has been replaced or removed.
const Self = "/proc/self/exe"

// Host is what a generation holds and hands over: the container.
type Host interface {
	// Claim keeps the state that a successor needs unchanged, until release. The error says why it is not possible now.
	Claim() (release func(), err error)
	// Rest brings to an end what can't be handed over halfway; wake, never nil, lets it go on. After a fault it does what it
	// can, and there is no error.
	Rest(fault bool) (wake func(), err error)
	// Yield calls f when the supervisor does nothing else. The error is that it does nothing any more.
	Yield(f func()) error
	// HandOver returns a pointer to what the next generation has to know, past being a part of it. Until thaw, never nil, nothing
	// of that changes. It is called in Yield, or by the supervisor after its fault.
	HandOver(past Past, fault bool) (state any, thaw func(), err error)
	// TakeLate returns the signals that have come and were not acted upon; PutBack puts them back.
	TakeLate() []syscall.Signal
	PutBack(late []syscall.Signal)
	// LastEvents is what happened last, for the report of a fault.
	LastEvents() string
	// Keep puts the report of a fault where people find it.
	Keep(name string, report []byte) (path string, err error)
	// Say tells the container's log.
	Say(line string)
	// End ends the container in good order.
	End(code int, reason string)
}

// Past is what each generation tells the next of itself and of those before it.
type Past struct {
	Format int
	Number int
	Exe    string      // file that the container's program is
	Comm   string      // name of the process
	Cause  string      // of the change, for people
	Faults []time.Time // that made it re-execute itself, of the last minute
}

// Generation is this program and what it knows of those before and after it. Its methods may be called from any goroutine.
type Generation struct {
	Number  int
	Version string // of this program
	Exe     string // file that the container's program is
	ID      string // that file as it was when this generation began, see [FileID]
	host    Host
	signals []syscall.Signal
	faults  []time.Time // of who deals with a fault

	settled atomic.Bool // the boot is over: there is something to hand over
	busy    atomic.Bool // a replacement that was asked for is under way
	broken  atomic.Bool // a fault is being dealt with
	failed  atomic.Bool // the container ends because of faults

	mu      sync.Mutex
	refused string
}

// First is the generation that the container was started with. signals are those that mean something to the host.
func First(host Host, signals []syscall.Signal) *Generation {
	exe, _ := os.Readlink(Self) // without /proc there is no successor either
	return &Generation{Number: 1, Version: version.Get().String(), Exe: strings.TrimSuffix(exe, " (deleted)"), ID: FileID(Self), host: host, signals: signals}
}

// Follows makes g the successor of another generation.
func (g *Generation) Follows(past Past) {
	g.Number, g.Exe, g.faults = past.Number+1, past.Exe, past.Faults
	g.Settle()
}

// Understand reads what was taken into what state points to. The name of the process becomes what it was.
func Understand(taken *Taken, state any, past *Past) error {
	if err := NewCodec().Decode(taken.State, state); err != nil {
		return err
	}
	if past.Format != Format {
		return fmt.Errorf("it speaks format %d of the handover and this one %d", past.Format, Format)
	}
	_ = os.WriteFile("/proc/self/comm", []byte(past.Comm), 0) // else it would be the name of the link it was executed by
	return nil
}

// GoesOn says for people that this generation goes on, and what the change has cost.
func (g *Generation) GoesOn(past Past, taken *Taken) string {
	text := fmt.Sprintf("image %d (%s) goes on: %s; deaf to signals for %v", g.Number, version.Get(), past.Cause, taken.Deaf.Round(10*time.Microsecond))
	if taken.Halted != nil {
		text += fmt.Sprintf("; process numbers were short, so every process stood still for %v", taken.Stood.Round(100*time.Microsecond))
	}
	return text
}

// Settle says that the boot is over.
func (g *Generation) Settle() { g.settled.Store(true) }

// Failed says whether the container ends because of faults.
func (g *Generation) Failed() bool { return g.failed.Load() }

// Refusal is why the last replacement that was asked for did not come about, "" when none has failed.
func (g *Generation) Refusal() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.refused
}

func (g *Generation) refuse(reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = reason
}

// Ask looks whether this process can become binary, "" for its own, and begins with it. It returns the number of this
// generation and does not wait for the end: Refusal tells it, or the next generation does.
func (g *Generation) Ask(ctx context.Context, binary string) (number int, err error) {
	if binary == "" {
		binary = g.Exe
	}
	if !g.settled.Load() {
		return 0, errors.New("the boot is not done yet; try again")
	}
	knows := make(chan bool, 1)
	if err := blocking.Within(ctx, blocking.Foreign, "looking at the binary", func() error {
		knows <- FileID(binary) == g.ID || knowsHalt(binary)
		return Check(binary)
	}); err != nil {
		return 0, err
	}
	if !g.busy.CompareAndSwap(false, true) {
		return 0, errors.New("hinit is being re-executed already")
	}
	release, err := g.host.Claim()
	if err != nil {
		g.busy.Store(false)
		return 0, err
	}
	g.refuse("")
	guard.Go("re-executing", func() {
		defer g.busy.Store(false)
		defer release()
		_, err := g.replace(binary, fmt.Sprintf("asked to (from %s)", version.Get()), false, <-knows)
		g.refuse(err.Error())
		g.host.Say(fmt.Sprintf("[hinit] cannot become another image: %v; everything goes on as it was", err))
	})
	return g.Number, nil
}

// replace becomes another program. It returns only with an error, and everything is as it was then. over says that the
// container has ended meanwhile.
func (g *Generation) replace(path, cause string, fault, knows bool) (over bool, err error) {
	wake, err := g.host.Rest(fault)
	defer wake()
	if err != nil {
		return false, err
	}
	if ended := g.host.Yield(func() { err = g.become(path, cause, fault, knows) }); ended != nil {
		return true, ended
	}
	return false, err
}

// become is called when the supervisor does nothing else. It returns only with an error.
func (g *Generation) become(path, cause string, fault, knows bool) error {
	name, _ := os.ReadFile("/proc/self/comm")
	past := Past{Format, g.Number, g.Exe, strings.TrimSpace(string(name)), cause, g.faults}
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
		Path: path, Argv: os.Args, Env: os.Environ(), Keep: codec.Keep(), State: data, Signals: g.signals, Knows: knows,
		Late: func() []syscall.Signal {
			late = g.host.TakeLate()
			return late
		},
	}
	err = p.Become()
	g.host.PutBack(late)
	return err
}
