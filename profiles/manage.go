package profiles

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"hinit/internal/fsutil"
)

const envFile = ".env"

// soulTemplate is the marker of a new profile. %s is its name.
const soulTemplate = `# %s

This file describes who this agent is: its role, its character, how it speaks and what it must not do.
Replace this text with your own.
`

// Info is a profile as a list shows it.
type Info struct {
	Profile Profile
	Active  bool  // it is the one that the agent's commands use when none is named
	State   State // see [Store.ReadState]
}

// List describes each profile that [Store.Discover] finds, in its order. A state that can't be read is a warning.
func (s *Store) List() ([]Info, []Warning, error) {
	found, warnings, err := s.Discover()
	if err != nil {
		return nil, warnings, err
	}
	active, activeErr := s.Active()
	if activeErr != nil {
		warnings = append(warnings, Warning{
			Path:    filepath.Join(s.root, activeFile),
			Message: "cannot tell which profile is active: " + activeErr.Error(),
		})
	}
	infos := make([]Info, len(found))
	for i, p := range found {
		st, err := s.ReadState(p.Name)
		if err != nil {
			warnings = append(warnings, Warning{
				Profile: p.Name, Path: filepath.Join(p.Home, stateFile),
				Message: stateError(p.Name, err).Error(),
			})
		}
		infos[i] = Info{Profile: p, Active: p.Name == active, State: st}
	}
	return infos, warnings, nil
}

// Active returns the profile that the agent's commands use when none is named: the content of active_profile, "default" when there
// is none. The profile need not exist (contract, section 4). A link in place of the file is not followed; it selects none, and the
// error says so.
func (s *Store) Active() (string, error) {
	d, err := s.open()
	if err != nil {
		return Default, err
	}
	defer d.Close()
	return active(d)
}

func active(d *fsutil.Dir) (string, error) {
	data, err := d.ReadFile(activeFile, maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return Default, nil
	}
	if isOdd(err) {
		return Default, fmt.Errorf("no profile is selected, for %w; remove %s", err, filepath.Join(d.Path(), activeFile))
	}
	if name := Normalize(string(data)); name != "" {
		return name, err
	}
	return Default, err
}

// isOdd reports whether an error is about what somebody has put where a small file of text belongs.
func isOdd(err error) bool {
	return errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrNotRegular) || errors.Is(err, fsutil.ErrTooLarge)
}

// Create makes the profile called name with its directories, an empty .env (mode 0600) and a marker, as the agent's own command
// does (contract, section 4). It is built under another name and renamed when it is complete. The error wraps [ErrName] for a name
// that isn't allowed, and [ErrExists] when there is anything of that name.
func (s *Store) Create(name string) (Profile, error) {
	if err := editable("create", name); err != nil {
		return Profile{}, err
	}
	defer s.lock(name)()
	err := s.in(name, func(d *fsutil.Dir, home string) error {
		if err := absent(d, home); err != nil {
			return err
		}
		temp := filepath.Join(profilesDir, newPrefix+name)
		if err := d.RemoveAll(temp); err != nil { // left by a crash
			return err
		}
		err := s.fillHome(d, temp, name)
		if err == nil {
			err = d.Rename(temp, home)
		}
		if err != nil {
			return errors.Join(err, d.RemoveAll(temp))
		}
		return nil
	})
	if err != nil {
		return Profile{}, fmt.Errorf("cannot create profile %q: %w", name, err)
	}
	return s.named(name), nil
}

func (s *Store) fillHome(d *fsutil.Dir, home, name string) error {
	for _, dir := range [...]string{
		"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home",
	} {
		if err := d.Mkdir(filepath.Join(home, dir), 0o755); err != nil {
			return err
		}
	}
	if err := d.Replace(filepath.Join(home, envFile), nil, fsutil.ReplaceOptions{Mode: 0o600}); err != nil {
		return err
	}
	soul := strings.Replace(soulTemplate, "%s", name, 1)
	return d.Replace(filepath.Join(home, s.marker), []byte(soul), fsutil.ReplaceOptions{Mode: 0o644})
}

// Names of what is being made and of what is being removed. No profile's begins with a dot.
const (
	newPrefix = ".new-"
	oldPrefix = ".old-"
)

// Delete removes the home of the profile called name, as the agent's user: what only root may remove makes it fail, and stays. The
// home is renamed first, so nobody sees half a profile. When name is the active profile, the default one becomes active. The log
// directory isn't touched (contract, section 4). The caller has stopped the gateway. The error wraps [ErrName] or [ErrNotExist].
func (s *Store) Delete(name string) error {
	if err := editable("delete", name); err != nil {
		return err
	}
	defer s.lock(name)()
	err := s.in(name, func(d *fsutil.Dir, home string) error {
		if err := present(d, home); err != nil {
			return err
		}
		if now, err := active(d); err != nil && !isOdd(err) {
			return err
		} else if now == name {
			if err := d.Remove(activeFile); err != nil {
				return err
			}
		}
		temp := filepath.Join(profilesDir, oldPrefix+name)
		if err := d.RemoveAll(temp); err != nil { // left by a crash
			return err
		}
		if err := d.Rename(home, temp); err != nil { // it is a mount, for example
			return d.RemoveAll(home)
		}
		if err := d.RemoveAll(temp); err != nil {
			return errors.Join(err, d.Rename(temp, home))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot delete profile %q: %w", name, err)
	}
	return nil
}

// Sweep removes what a Create or a Delete that was cut short before a given time has left behind.
func (s *Store) Sweep(before time.Time) error {
	err := s.together(func(d *fsutil.Dir) error {
		var left []string
		_ = d.EachName(profilesDir, func(name string, _ fs.FileMode) bool { // who looks for profiles tells why it can't be read
			if strings.HasPrefix(name, newPrefix) || strings.HasPrefix(name, oldPrefix) {
				left = append(left, name)
			}
			return len(left) < fsutil.MostNames
		})
		var err error
		for _, name := range left {
			path := filepath.Join(profilesDir, name)
			if info, gone := d.Lstat(path); gone == nil && info.ModTime().Before(before) {
				err = errors.Join(err, d.RemoveAll(path))
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot remove what a profile command that was cut short has left: %w", err)
	}
	return nil
}

// Rename gives the profile from the name to. When it is the active one, it stays so. The caller has stopped the gateway.
// The error wraps [ErrName], [ErrNotExist] when there is no from, [ErrExists] when there is anything called to.
func (s *Store) Rename(from, to string) error {
	if err := errors.Join(editable("rename", from), editable("rename", to)); err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("cannot rename profile %q to %q: %w", from, to, ErrExists)
	}
	defer s.lock(min(from, to))() // always in the same order
	defer s.lock(max(from, to))()
	err := s.in(from, func(d *fsutil.Dir, home string) error {
		if err := present(d, home); err != nil {
			return err
		}
		target := filepath.Join(profilesDir, to)
		if err := absent(d, target); err != nil {
			return err
		}
		now, err := active(d)
		if err != nil && !isOdd(err) {
			return err
		}
		if now != from {
			return d.Rename(home, target)
		}
		// First, so that after a crash the same command can be given again.
		if err := setActive(d, to); err != nil {
			return err
		}
		if err := d.Rename(home, target); err != nil {
			return errors.Join(err, setActive(d, from))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot rename profile %q to %q: %w", from, to, err)
	}
	return nil
}

func setActive(d *fsutil.Dir, name string) error {
	return d.Replace(activeFile, []byte(name+"\n"), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true})
}

// editable refuses names that can be neither created nor deleted nor renamed.
func editable(verb, name string) error {
	err := ValidName(name)
	if err == nil && name == Default {
		err = nameError(name, "the root profile always exists")
	}
	if err != nil {
		return fmt.Errorf("cannot %s profile %q: %w", verb, name, err)
	}
	return nil
}

func absent(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if err == nil {
		return ErrExists
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func present(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotExist
	}
	return err
}
