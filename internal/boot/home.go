package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"hinit/internal/fsutil"
)

var errNoHome, errReadOnly = errors.New("no data directory"), errors.New("mount it without :ro")

// makeHome creates the data directory and its parents (contract, section 2.1, step 2).
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
	d, _, err := fsutil.MakeReal(p.Home, 0o755, nil)
	if errors.Is(err, fsutil.ErrSymlink) {
		if info, statErr := os.Stat(p.Home); statErr == nil && info.IsDir() {
			p.linked = true
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, errNoHome)
	}
	if !p.Agent.Switches() {
		return d.Close()
	}
	p.root = d
	return nil
}

func (p *preparer) asAgent() (*fsutil.Dir, error) { return fsutil.OpenDir(p.Home, p.Agent) }

// makeDirectories creates the agent's directories (step 10). It acts as the agent's user, so it needs no right to change owners.
func (p *preparer) makeDirectories(ctx context.Context, s *Step) error {
	d, err := p.asAgent()
	if err != nil {
		return err
	}
	defer d.Close()
	first := d.WithIdentity(func(d *fsutil.Dir) (first error) {
		for _, rel := range agentDirectories {
			if ctx.Err() != nil || p.isStuck(rel) {
				continue
			}
			err := d.Mkdir(rel, 0o755)
			// Ignore a link: the agent may have put it in place of the directory.
			if err != nil && !errors.Is(err, fsutil.ErrSymlink) && first == nil {
				first = err
			}
		}
		return first
	})
	for _, name := range []string{EnvFile, StampFile} {
		if _, err := d.Lstat(name); err == nil {
			p.secrets = true
		}
	}
	if err := p.makeLogDirectory(d); err != nil && first == nil {
		first = err
	}
	if err := p.makeRealHome(s); err != nil && first == nil {
		first = err
	}
	p.makeScratchDir(s)
	return first
}

// makeScratchDir creates the directory Options.Scratch for the agent's files outside of the volume. No other user can open it.
func (p *preparer) makeScratchDir(s *Step) {
	parent, name := filepath.Split(p.Scratch)
	err := func() error {
		d, err := fsutil.OpenNoLink(parent, nil)
		if err != nil {
			return err
		}
		defer d.Close()
		if err := d.Mkdir(name, 0o700); err != nil {
			return err
		}
		own, err := d.SubOnSameMount(name)
		if err != nil { // name is a mount, whose owner the host has chosen
			return err
		}
		defer own.Close()
		if _, _, err := own.Chown("", p.Owner()); err != nil {
			return err // the owner stays root
		}
		return p.Agent.Do(func() error {
			_, err := own.Chmod("", 0o700)
			return err
		})
	}()
	if err != nil && slices.Contains(filepath.SplitList(EnvOf(p.Env, "HERMES_WRITE_SAFE_ROOT")), p.Scratch) {
		s.Warn("the agent cannot use %s: %v — continuing", p.Scratch, err)
	}
}

// agentDirectories are the directories that each boot creates in the data directory. The logs of the gateways are elsewhere,
// see Options.Logs.
var agentDirectories = []string{
	"cron", "sessions", "logs", "hooks", "memories", "skills", "skins", "plans", "workspace", "home", "pairing",
	"platforms/pairing", "backups", "lazy-packages",
}

func (p *preparer) isStuck(rel string) bool {
	return slices.ContainsFunc(p.hangingDirs, func(stuck string) bool { return rel == stuck || strings.HasPrefix(rel, stuck+"/") })
}

// logsBeneath returns the gateways' log directory relative to the data directory. ok is false if it is elsewhere.
func (p *preparer) logsBeneath() (rel string, ok bool) {
	rel, err := filepath.Rel(p.Home, p.Logs)
	return rel, err == nil && rel != "." && filepath.IsLocal(rel)
}

func (p *preparer) makeLogDirectory(home *fsutil.Dir) error {
	if rel, ok := p.logsBeneath(); ok {
		if p.isStuck(rel) {
			return nil
		}
		err := home.Mkdir(rel, 0o755)
		if errors.Is(err, fsutil.ErrSymlink) {
			return nil
		}
		return err
	}
	return p.makeOutside("the log directory", p.Logs)
}

// makeOutside creates a directory outside of the volume at path. The argument what describes the directory in messages. If the
// agent is not allowed to create it, root creates it and makes the agent its owner. An existing directory keeps its owner.
func (p *preparer) makeOutside(what, path string) error {
	err := p.Agent.Do(func() error { return WithoutPath(os.MkdirAll(path, 0o755)) })
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrPermission) || !p.Agent.Switches() {
		return fmt.Errorf("cannot make %s %q: %w", what, path, err)
	}
	d, made, err := fsutil.MakeReal(path, 0o755, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	if made {
		_, _, err = d.Chown("", p.Owner())
	}
	return err
}

// makeRealHome creates the directory that HERMES_REAL_HOME names. It is the HOME of every service.
func (p *preparer) makeRealHome(s *Step) error {
	dir := EnvOf(p.Env, "HERMES_REAL_HOME")
	if dir == "" || dir == p.Home {
		return nil
	}
	if filepath.IsAbs(dir) && filepath.Clean(dir) == "/" { // never give the root directory to the agent
		s.home = "/"
		return nil
	}
	if !PlainPath(dir) {
		return fmt.Errorf("cannot use HERMES_REAL_HOME=%q: expected an absolute path", dir)
	}
	dir = filepath.Clean(dir)
	s.home = dir
	return p.makeOutside("HERMES_REAL_HOME", dir)
}

// PlainPath reports whether a path is absolute and not the root directory, and has no control characters and no blanks at its
// ends.
func PlainPath(path string) bool {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	return filepath.IsAbs(path) && filepath.Clean(path) != "/" && strings.TrimSpace(path) == path && strings.IndexFunc(path, control) < 0
}
