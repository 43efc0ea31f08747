package boot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Image says what [Options] take from the agent's image.
type Image struct {
	Stamp string // another one for each build of it
	Seeds bool   // [ImageHook] seeds the data directory, and Prepare does not
}

// Options are for [Prepare] and [Repair]. Home, Logs, User, Agent and Env are required; other zero values mean the Hermes image.
type Options struct {
	Home  string        // data directory, absolute and clean
	Logs  string        // directory of the gateways' logs
	User  string        // name of the agent's user in messages
	Agent *fsutil.Actor // the agent's user
	Env   func(name string) (string, bool)
	Say   func(Line) // gets every line as it happens; called by one goroutine at a time

	Install      string // the agent's installation; "": /opt/hermes
	BakedBrowser string // file that names the browser of the image; "": /etc/hermes/agent-browser-executable-path
	Environment  string // directory for the variables found; "": /run/s6/container_environment
	Seed         string // the image's files for an empty data directory; "": /usr/share/hinit/home
	Seal         string // the seal of the image's build; "": /usr/share/hinit/sealed
	Scratch      string // the agent's directory for files outside the volume; "": /tmp/hermes-files
	Image        Image

	Tenants Tenants // profiles with users of their own

	PhaseBudget time.Duration // most time for one phase; 0: 10 s
	Budget      time.Duration // most time for all phases; 0: 30 s

	Full      bool          // Repair walks through all of the agent's directories, see [Report]
	Only      []string      // named profiles whose homes Repair keeps to; nil: it doesn't
	MaxInodes int64         // most inodes that Repair visits; 0: 2,000,000
	MaxTime   time.Duration // most time for Repair; 0: 30 min
}

// Report is the result of [Prepare].
type Report struct {
	Phases   []client.BootStep
	Warnings []string // texts of the lines that are warnings

	// Env has variables for everything that is started later; Home is the value of HOME for it, "" for no change.
	Env  map[string]string
	Home string

	// Full tells [Repair] to check all of the agent's directories: the data directory was somebody else's, or an earlier Repair was
	// interrupted.
	Full bool

	// Planted: the data directory was empty and is now a copy of the image's. See [Memory.Recall].
	Planted bool

	// Unusable: the data volume did not answer, or there is none. Services that don't need it can start.
	Unusable bool
}

// Failed returns the first phase that failed, leaving out the named ones; false when there is none.
func (r Report) Failed(but ...string) (client.BootStep, bool) {
	for _, p := range r.Phases {
		if p.Error != "" && !slices.Contains(but, p.Name) {
			return p, true
		}
	}
	return client.BootStep{}, false
}

// Prepare makes the data volume ready for the gateways: steps 2, 5 to 14, 16, 17 and 19 of contract section 2.1; [Repair] does the
// recursive part. Call it once, after [Identity] and before anything that uses the volume.
//
// A phase that fails is a warning. A phase that exceeds its budget is abandoned, and later phases that need the volume are skipped.
// Prepare returns after all phases, at the latest after o.Budget. When ctx ends, the current phase is abandoned.
func Prepare(ctx context.Context, o Options) Report {
	o = o.withDefaults()
	p := &preparer{Options: o}
	phases := []phase{
		{"home", true, p.home},
		{"ownership", true, p.ownership},
		{"plant", true, p.plant},
		{"directories", true, p.directories},
		{"seeds", true, p.seeds},
		{"bootstrap", true, p.bootstrap},
		{"browser", false, p.browser},
	}
	noSeed := blocking.Do(blocking.Foreign, func() error {
		_, err := os.Stat(o.Seed)
		return err
	}) != nil // as in most images
	phases = slices.DeleteFunc(phases, func(ph phase) bool {
		return ph.name == "plant" && noSeed || o.Image.Seeds && slices.Contains([]string{"plant", "seeds", "bootstrap"}, ph.name)
	})
	r := runPhases(ctx, o, phases)
	if !r.Unusable && len(p.stuck) == 0 && p.root != nil { // or else something that hangs may be using it
		p.root.Close()
	}
	return r
}

func (o Options) withDefaults() Options {
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&o.Install, "/opt/hermes")
	def(&o.BakedBrowser, "/etc/hermes/agent-browser-executable-path")
	def(&o.Environment, "/run/s6/container_environment")
	def(&o.Seed, Seed)
	def(&o.Seal, "/usr/share/hinit/sealed")
	def(&o.Scratch, "/tmp/hermes-files")
	if o.PhaseBudget <= 0 {
		o.PhaseBudget = 10 * time.Second
	}
	if o.Budget <= 0 {
		o.Budget = 30 * time.Second
	}
	if o.MaxInodes <= 0 {
		o.MaxInodes = 2_000_000
	}
	if o.MaxTime <= 0 {
		o.MaxTime = 30 * time.Minute
	}
	if o.Say == nil {
		o.Say = func(Line) {}
	}
	return o
}

// preparer is shared by the phases, which run one after the other. After one was abandoned, no other that uses it runs.
type preparer struct {
	Options

	root   *fsutil.Dir // the data directory as root; nil where no owners are changed
	linked bool        // the data directory is a link, so root does nothing in it
	stuck  []string    // directories of the agent's, relative, that are on a mount that doesn't answer
}

type phase struct {
	name   string
	volume bool
	run    func(ctx context.Context, s *step) error
}

// step collects the reports of a running phase, until the phase is abandoned.
type step struct {
	mu       sync.Mutex
	closed   bool
	say      func(Line)
	warnings []string
	env      map[string]string
	home     string
	full     bool
	planted  bool

	chownFailed bool
}

func (s *step) line(l Line) {
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

func (s *step) info(format string, args ...any) { s.line(info(fmt.Sprintf(format, args...))) }
func (s *step) warn(format string, args ...any) { s.line(warning(fmt.Sprintf(format, args...))) }

// refuse reports a link in the way of root's work (contract, section 2.1, step 9).
func (s *step) refuse(action, path string) {
	s.warn("refusing %s through symlinked path %s — continuing", action, path)
}

// cannotChown reports that once: if one owner can't be changed, hardly any can.
func (s *step) cannotChown(path string) {
	s.mu.Lock()
	first := !s.chownFailed
	s.chownFailed = true
	s.mu.Unlock()
	if first {
		s.warn("chown %s failed (rootless container?) — continuing", path)
	}
}

var errAbandoned = errors.New("took too long")

func runPhases(ctx context.Context, o Options, phases []phase) Report {
	r := Report{Env: map[string]string{}}
	end := time.Now().Add(o.Budget)
	readOnly := false // the whole volume, and that is said
	for _, ph := range phases {
		if ph.volume && r.Unusable {
			continue
		}
		budget := max(0, min(o.PhaseBudget, time.Until(end)))
		start := time.Now()
		s, abandoned, err := runPhase(ctx, o, ph, budget)
		done := client.BootStep{Name: ph.name, Seconds: since(start)}
		if err != nil {
			done.Error = err.Error()
		}
		readOnly = readOnly || errors.Is(err, errReadOnly)
		r.Phases = append(r.Phases, done)
		r.Warnings = append(r.Warnings, s.warnings...)
		maps.Copy(r.Env, s.env)
		if s.home != "" {
			r.Home = s.home
		}
		r.Full = r.Full || s.full
		r.Planted = r.Planted || s.planted
		tell := func(format string, args ...any) {
			l := warning(fmt.Sprintf(format, args...))
			r.Warnings = append(r.Warnings, l.Text)
			o.Say(l)
		}
		switch {
		case abandoned && ph.volume:
			r.Unusable = true
			tell("%s does not answer: the boot step %q was abandoned after %.1f s, and the others that need it are skipped — continuing", o.Home, ph.name, done.Seconds)
		case abandoned:
			tell("the boot step %q was abandoned after %.1f s — continuing", ph.name, done.Seconds)
		case err != nil && errors.Is(err, errNoHome):
			r.Unusable = true
			tell("%v — continuing without it", err)
		case err != nil && !(readOnly && errors.Is(err, unix.EROFS)):
			tell("%v — continuing", err)
		}
	}
	return r
}

// runPhase runs one phase in its own goroutine, which it leaves behind when that hangs.
func runPhase(ctx context.Context, o Options, ph phase, budget time.Duration) (said *step, abandoned bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errAbandoned)
	defer cancel()
	s := &step{say: o.Say, env: map[string]string{}}
	done := make(chan error, 1)
	guard.Go("a step of the boot", func() {
		done <- blocking.Do(blocking.Volume, func() error { return ph.run(ctx, s) })
	})
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done: // in the last moment
		default:
			abandoned, err = true, fmt.Errorf("abandoned: %w", context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if abandoned { // it may still write fields that the lock does not protect
		return &step{warnings: s.warnings}, true, err
	}
	return s, false, err
}

func (p *preparer) path(rel string) string { return filepath.Join(p.Home, rel) }
