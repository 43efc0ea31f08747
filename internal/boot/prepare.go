package boot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Prepare makes the data volume ready for the gateways: steps 2 and 5 to 10 of the contract, section 2.1. The boot program does
// the other steps. Prepare runs the phases in more before it makes the agent's directories, unless root must not change the
// data directory. Call Prepare once, after [ResolveAgent] and before all other uses of the volume.
//
// If a phase fails, Prepare reports a warning and runs the next phase. It abandons a phase that exceeds its budget, and then
// skips later phases that need the volume. Prepare returns after all phases, at the latest after o.Budget. When ctx ends, it
// abandons the present phase.
func Prepare(ctx context.Context, o Options, more ...Phase) *Report {
	o = o.withDefaults()
	p := &preparer{Options: o}
	r := &Report{Env: map[string]string{}}
	phases := []Phase{{"home", true, p.makeHome}, {"ownership", true, p.chownHomes}}
	for _, ph := range more {
		phases = append(phases, Phase{ph.Name, true, func(ctx context.Context, s *Step) error {
			if p.homeIsLink || r.ReadOnly {
				return nil
			}
			return ph.Run(ctx, s)
		}})
	}
	r.Run(ctx, o, append(phases, Phase{"directories", true, p.makeDirectories}))
	if !r.Unusable { // if Unusable is set, an abandoned phase may still write this field
		r.HomeIsLink = p.homeIsLink
	}
	// a hung call may still use the directory
	if !r.Unusable && len(p.hangingDirs) == 0 && p.root != nil {
		p.root.Close()
	}
	return r
}

func (o Options) withDefaults() Options {
	o.ScratchDir = cmp.Or(o.ScratchDir, "/tmp/hermes-files")
	o.PhaseBudget, o.TotalBudget = cmp.Or(o.PhaseBudget, 10*time.Second), cmp.Or(o.TotalBudget, 30*time.Second)
	if o.Say == nil {
		o.Say = func(LogLine) {}
	}
	return o
}

// preparer is the state that the phases share. Phases run one after the other. After an abandoned phase, no later phase uses
// the state.
type preparer struct {
	Options

	root        *fsutil.Dir // the data directory, opened as root; nil if owners are not changed
	homeIsLink  bool        // the data directory is a symbolic link, so root changes nothing in it
	hangingDirs []string    // the agent's directories on mounts that don't answer, relative to Home
}

// Phase is a step of the boot, with a name for the timeline.
type Phase struct {
	Name        string
	NeedsVolume bool // the phase needs the data volume, and hinit skips it without one
	Run         func(ctx context.Context, s *Step) error
}

// Step collects the results of a phase during the phase. It ignores messages of an abandoned phase.
type Step struct {
	StepLog
	Report // contribution of this phase to the whole report

	mu     sync.Mutex
	closed bool
	say    func(LogLine)
}

// NewStep returns the Step of a new phase. say receives its messages.
func NewStep(say func(LogLine)) *Step {
	s := &Step{say: say, Report: Report{Env: map[string]string{}}}
	s.Tell = s.record
	return s
}

func (s *Step) record(l LogLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if l.Warning {
		s.Warnings = append(s.Warnings, l.Text)
	}
	s.say(l)
}

var errPhaseTimeout = errors.New("took too long")

// Run runs phases one after the other, and adds their results to r.
func (r *Report) Run(ctx context.Context, o Options, phases []Phase) {
	o = o.withDefaults()
	end := time.Now().Add(o.TotalBudget)
	for _, ph := range phases {
		if ph.NeedsVolume && r.Unusable {
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
		r.Warnings = append(r.Warnings, s.Warnings...)
		maps.Copy(r.Env, s.Env)
		r.Home = cmp.Or(s.Home, r.Home)
		r.RepairEverything = r.RepairEverything || s.RepairEverything
		r.FilledFromImage = r.FilledFromImage || s.FilledFromImage
		r.HasSecrets = r.HasSecrets || s.HasSecrets
		tell := func(format string, args ...any) {
			l := Warning(fmt.Sprintf(format, args...))
			r.Warnings = append(r.Warnings, l.Text)
			o.Say(l)
		}
		switch {
		case abandoned && ph.NeedsVolume:
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

// runPhase runs one phase in a goroutine. It abandons the goroutine when the budget is used up. result has the reports of the
// phase.
func runPhase(ctx context.Context, o Options, ph Phase, budget time.Duration) (result *Step, abandoned bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errPhaseTimeout)
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
		case err = <-done:
		default:
			abandoned, err = true, fmt.Errorf("abandoned: %w", context.Cause(ctx))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if abandoned { // the phase may still write fields that the lock does not protect
		return &Step{Report: Report{Warnings: s.Warnings}}, true, err
	}
	return s, false, err
}

// HomePath returns the path of a file that is given relative to the data directory.
func (o Options) HomePath(rel string) string { return filepath.Join(o.Home, rel) }

// SecondsSince returns the seconds since start, for the timeline.
func SecondsSince(start time.Time) float64 { return time.Since(start).Seconds() }

var errNoHome, errReadOnly = errors.New("no data directory"), errors.New("mount it without :ro")

// makeHome makes the data directory and its parents (contract, section 2.1, step 2). It fails on a read-only volume.
func (p *preparer) makeHome(context.Context, *Step) (err error) {
	defer func() {
		if err == nil && ReadOnly(p.Home) {
			err = fmt.Errorf("the data directory %q is read-only; %w", p.Home, errReadOnly)
		}
	}()
	if os.Geteuid() != 0 {
		if err := os.MkdirAll(p.Home, 0o755); err != nil {
			return fmt.Errorf("cannot make the data directory %q: %w: %w", p.Home, WithoutPath(err), errNoHome)
		}
		return nil
	}
	d, _, err := fsutil.MakeNoLink(p.Home, 0o755, nil)
	if errors.Is(err, fsutil.ErrSymlink) {
		if info, statErr := os.Stat(p.Home); statErr == nil && info.IsDir() {
			p.homeIsLink = true
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, errNoHome)
	}
	if !p.Agent.SwitchesIdentity() {
		return d.Close()
	}
	p.root = d
	return nil
}

func (p *preparer) openHomeAsAgent() (*fsutil.Dir, error) { return fsutil.OpenDir(p.Home, p.Agent) }

// makeDirectories makes the agent's directories (step 10) as the agent's user, so that they have the right owner from the
// beginning.
func (p *preparer) makeDirectories(ctx context.Context, s *Step) error {
	d, err := p.openHomeAsAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	first := d.WithIdentity(func(d *fsutil.Dir) (first error) {
		for _, rel := range agentDirectories {
			if ctx.Err() != nil || p.isHanging(rel) {
				continue
			}
			// A symbolic link of the agent in this place is no error.
			if err := d.Mkdir(rel, 0o755); !errors.Is(err, fsutil.ErrSymlink) {
				first = cmp.Or(first, err)
			}
		}
		return first
	})
	for _, name := range []string{EnvFile, InstallMethodFile} {
		if _, err := d.Lstat(name); err == nil {
			s.HasSecrets = true
		}
	}
	first = cmp.Or(first, p.makeLogDirectory(d), p.makeRealHome(s))
	p.makeScratchDir(s)
	return first
}

// makeScratchDir makes the directory Options.Scratch for the agent's files outside the volume. No other user can open it.
func (p *preparer) makeScratchDir(s *Step) {
	own, err := fsutil.WithParentDir(p.ScratchDir, nil, func(d *fsutil.Dir, name string) (*fsutil.Dir, error) {
		if err := d.Mkdir(name, 0o700); err != nil {
			return nil, err
		}
		return d.OpenSubdirSameMount(name) // the host has chosen the owner of a mount
	})
	if err == nil {
		defer own.Close()
		_, _, err = own.Chown("", p.Owner())
	}
	if err == nil {
		err = p.Agent.Do(func() error { return own.Chmod("", 0o700) })
	}
	if err != nil && slices.Contains(filepath.SplitList(EnvOf(p.Env, "HERMES_WRITE_SAFE_ROOT")), p.ScratchDir) {
		s.Warn("the agent cannot use %s: %v — continuing", p.ScratchDir, err)
	}
}

// agentDirectories are the directories that each boot makes in the data directory. The gateways' logs are elsewhere, see
// Options.Logs.
var agentDirectories = []string{
	"cron", "sessions", "logs", "hooks", "memories", "skills", "skins", "plans", "workspace", "home", "pairing",
	"platforms/pairing", "backups", "lazy-packages",
}

func (p *preparer) isHanging(rel string) bool {
	return slices.ContainsFunc(p.hangingDirs, func(stuck string) bool { return rel == stuck || strings.HasPrefix(rel, stuck+"/") })
}

func (p *preparer) logsRelativeToHome() (rel string, ok bool) {
	rel, err := filepath.Rel(p.Home, p.Logs)
	return rel, err == nil && rel != "." && filepath.IsLocal(rel)
}

func (p *preparer) makeLogDirectory(home *fsutil.Dir) error {
	if rel, ok := p.logsRelativeToHome(); ok {
		if p.isHanging(rel) {
			return nil
		}
		err := home.Mkdir(rel, 0o755)
		if errors.Is(err, fsutil.ErrSymlink) {
			return nil
		}
		return err
	}
	return p.makeOutsideDir("the log directory", p.Logs)
}

// makeOutsideDir makes the directory path outside the volume. Messages contain the name what. If the agent has no permission,
// root makes the directory and gives it to the agent. An existing directory keeps its owner.
func (p *preparer) makeOutsideDir(what, path string) error {
	err := p.Agent.Do(func() error { return WithoutPath(os.MkdirAll(path, 0o755)) })
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrPermission) || !p.Agent.SwitchesIdentity() {
		return fmt.Errorf("cannot make %s %q: %w", what, path, err)
	}
	d, made, err := fsutil.MakeNoLink(path, 0o755, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	if made {
		_, _, err = d.Chown("", p.Owner())
	}
	return err
}

// makeRealHome makes the directory in HERMES_REAL_HOME, the HOME of every service.
func (p *preparer) makeRealHome(s *Step) error {
	dir := EnvOf(p.Env, "HERMES_REAL_HOME")
	if dir == "" || dir == p.Home {
		return nil
	}
	if filepath.IsAbs(dir) && filepath.Clean(dir) == "/" { // the root directory never becomes the agent's
		s.Home = "/"
		return nil
	}
	if !IsCleanPath(dir) {
		return fmt.Errorf("cannot use HERMES_REAL_HOME=%q: expected an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	s.Home = dir
	return p.makeOutsideDir("HERMES_REAL_HOME", dir)
}

// IsCleanPath reports whether a path is absolute, is not the root directory, and has no control characters and no blanks at its
// ends.
func IsCleanPath(path string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return filepath.IsAbs(path) && filepath.Clean(path) != "/" && strings.TrimSpace(path) == path && strings.IndexFunc(path, control) < 0
}
