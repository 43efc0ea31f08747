package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Prepare makes the data volume ready for the gateways: steps 2 and 5 to 10 of contract section 2.1. The boot program does the
// other steps. The phases in more run before the agent's directories are created; they are skipped if root must not change the
// data directory. Call Prepare once, after [ResolveAgent] and before anything that uses the volume.
//
// If a phase fails, Prepare reports a warning and goes on. If a phase exceeds its budget, it is abandoned, and later phases
// that need the volume are skipped. Prepare returns after all phases, and no later than after o.Budget. When ctx ends, the
// current phase is abandoned.
func Prepare(ctx context.Context, o Options, more ...Phase) *Report {
	o = o.withDefaults()
	p := &preparer{Options: o}
	r := &Report{Env: map[string]string{}}
	phases := []Phase{{"home", true, p.makeHome}, {"ownership", true, p.giveOwnership}}
	for _, ph := range more {
		phases = append(phases, Phase{ph.Name, true, func(ctx context.Context, s *Step) error {
			if p.linked || r.ReadOnly {
				return nil
			}
			return ph.Run(ctx, s)
		}})
	}
	r.Run(ctx, o, append(phases, Phase{"directories", true, p.makeDirectories}))
	if !r.Unusable { // if the volume hangs, a phase may still be writing these fields
		r.Linked, r.HasSecrets = p.linked, p.secrets
	}
	if !r.Unusable && len(p.hangingDirs) == 0 && p.root != nil { // if the volume hangs, a call may still be using the directory
		p.root.Close()
	}
	return r
}

func (o Options) withDefaults() Options {
	o.Scratch = cmp.Or(o.Scratch, "/tmp/hermes-files")
	o.PhaseBudget, o.Budget = cmp.Or(o.PhaseBudget, 10*time.Second), cmp.Or(o.Budget, 30*time.Second)
	if o.Say == nil {
		o.Say = func(Line) {}
	}
	return o
}

// preparer is the state that the phases share. The phases run one after the other. After a phase was abandoned, the state is no
// longer used.
type preparer struct {
	Options

	root        *fsutil.Dir // the data directory, opened as root; nil if owners are not changed
	secrets     bool        // the data directory has files that must be checked, see [Report].HasSecrets
	linked      bool        // the data directory is a symbolic link, so root changes nothing in it
	hangingDirs []string    // the agent's directories, relative to Home, on mounts that don't answer
}

// Phase is a step of the boot with a budget and a measured duration.
type Phase struct {
	Name   string
	Volume bool // the phase needs the data volume
	Run    func(ctx context.Context, s *Step) error
}

// Step collects the results of a phase while it runs. After the phase was abandoned, it records no more messages.
type Step struct {
	StepLog
	Env             map[string]string // environment variables for all later programs, see [Report]
	FilledFromImage bool

	mu       sync.Mutex
	closed   bool
	say      func(Line)
	warnings []string
	home     string
	full     bool
}

// NewStep returns the Step for a phase that is about to run. Messages of the phase go to say.
func NewStep(say func(Line)) *Step {
	s := &Step{say: say, Env: map[string]string{}}
	s.Tell = s.record
	return s
}

func (s *Step) record(l Line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if l.Warning {
		s.warnings = append(s.warnings, l.Text)
	}
	s.say(l)
}

var errAbandoned = errors.New("took too long")

// Run runs phases one after the other, and adds their results to the report r.
func (r *Report) Run(ctx context.Context, o Options, phases []Phase) {
	o = o.withDefaults()
	end := time.Now().Add(o.Budget)
	for _, ph := range phases {
		if ph.Volume && r.Unusable {
			continue
		}
		budget := max(0, min(o.PhaseBudget, time.Until(end)))
		start := time.Now()
		s, abandoned, err := runPhase(ctx, o, ph, budget)
		done := client.BootStep{Name: ph.Name, Seconds: SecondsSince(start)}
		if err != nil {
			done.Error = err.Error()
		}
		r.ReadOnly = r.ReadOnly || errors.Is(err, errReadOnly)
		r.Phases = append(r.Phases, done)
		r.Warnings = append(r.Warnings, s.warnings...)
		maps.Copy(r.Env, s.Env)
		if s.home != "" {
			r.Home = s.home
		}
		r.Full = r.Full || s.full
		r.FilledFromImage = r.FilledFromImage || s.FilledFromImage
		tell := func(format string, args ...any) {
			l := Warning(fmt.Sprintf(format, args...))
			r.Warnings = append(r.Warnings, l.Text)
			o.Say(l)
		}
		switch {
		case abandoned && ph.Volume:
			r.Unusable = true
			tell("%s does not answer: the boot step %q was abandoned after %.1f s, and the others that need it are skipped — continuing", o.Home, ph.Name, done.Seconds)
		case abandoned:
			tell("the boot step %q was abandoned after %.1f s — continuing", ph.Name, done.Seconds)
		case err != nil && errors.Is(err, errNoHome):
			r.Unusable = true
			tell("%v — continuing without it", err)
		case err != nil && !(r.ReadOnly && errors.Is(err, unix.EROFS)):
			tell("%v — continuing", err)
		}
	}
}

// runPhase runs one phase in a goroutine. It abandons the goroutine when the time budget is over.
func runPhase(ctx context.Context, o Options, ph Phase, budget time.Duration) (said *Step, abandoned bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errAbandoned)
	defer cancel()
	s := NewStep(o.Say)
	done := make(chan error, 1)
	guard.Go("a step of the boot", func() {
		done <- blocking.Do(blocking.Volume, func() error { return ph.Run(ctx, s) })
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done: // the phase ended at the last moment
		default:
			abandoned, err = true, fmt.Errorf("abandoned: %w", context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if abandoned { // the phase may still be writing fields that the lock does not protect
		return &Step{warnings: s.warnings}, true, err
	}
	return s, false, err
}

// Path returns the path of a file whose name is given relative to the data directory.
func (o Options) Path(rel string) string { return filepath.Join(o.Home, rel) }

// SecondsSince returns the number of seconds since start.
func SecondsSince(start time.Time) float64 { return time.Since(start).Seconds() }
