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

// Prepare makes the data volume ready for the gateways: steps 2 and 5 to 10 of contract section 2.1. The boot program does the other steps.
// more are phases of the boot program that must come before the agent's directories are made; they are skipped for a data directory that
// root must not change. Call Prepare once, after [SettleAgent] and before anything that uses the volume.
//
// A phase that fails is a warning. A phase that exceeds its budget is abandoned, and later phases that need the volume are skipped.
// Prepare returns after all phases, at the latest after o.Budget. When ctx ends, the current phase is abandoned.
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
	if !r.Unusable { // otherwise a hung phase may be writing it
		r.Linked, r.HasSecrets = p.linked, p.secrets
	}
	if !r.Unusable && len(p.stuck) == 0 && p.root != nil { // otherwise a hung phase may be using it
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

// preparer is the state that the phases share. The phases run one after the other. Once a phase was abandoned, the state is not
// used any more.
type preparer struct {
	Options

	root    *fsutil.Dir // the data directory, opened as root; nil if no owners are changed
	secrets bool        // see [Report].HasSecrets
	linked  bool        // the data directory is a link, so root changes nothing in it
	stuck   []string    // directories of the agent, relative, on mounts that don't answer
}

// Phase is a step of the boot with a budget and a measured duration.
type Phase struct {
	Name   string
	Volume bool // it needs the data volume
	Run    func(ctx context.Context, s *Step) error
}

// Step collects the results of a running phase, until the phase is abandoned.
type Step struct {
	Teller
	Env     map[string]string // see [Report]
	Planted bool

	mu       sync.Mutex
	closed   bool
	say      func(Line)
	warnings []string
	home     string
	full     bool
}

// NewStep returns the Step for a phase that begins.
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

// Run executes phases and adds their results to the report.
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
		done := client.BootStep{Name: ph.Name, Seconds: Since(start)}
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
		r.Planted = r.Planted || s.Planted
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

// runPhase executes one phase in a goroutine. It abandons the goroutine if that exceeds the budget.
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
		case err = <-done: // it ended at the last moment
		default:
			abandoned, err = true, fmt.Errorf("abandoned: %w", context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if abandoned { // the phase may still write fields that the lock does not protect
		return &Step{warnings: s.warnings}, true, err
	}
	return s, false, err
}

// Path returns the path of a file in the data directory.
func (o Options) Path(rel string) string { return filepath.Join(o.Home, rel) }

// Since returns the seconds since a moment.
func Since(start time.Time) float64 { return time.Since(start).Seconds() }
