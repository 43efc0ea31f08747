// Package manage makes, removes and renames the homes of profiles, for a command that is the only one to do so in its process.
// PID 1 notices these changes as it notices changes by the agent. It owns no goroutine.
package manage

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"hinit/internal/fsutil"
	"hinit/profiles"
)

// soulTemplate is the marker of a new profile. %s is its name.
const soulTemplate = `# %s

This file describes who this agent is: its role, its character, how it speaks and what it must not do.
Replace this text with your own.
`

// Create makes the profile called name with its directories, an empty .env (mode 0600) and a marker, as the agent's own command
// does (contract, section 4). It is built under another name and renamed when it is complete. The error wraps [profiles.ErrName] for a name
// that isn't allowed, and [profiles.ErrExists] when there is anything of that name.
func Create(s *profiles.Store, name string) (profiles.Profile, error) {
	if err := editable("create", name); err != nil {
		return profiles.Profile{}, err
	}
	err := s.In(name, func(d *fsutil.Dir, home string) error {
		if err := absent(d, home); err != nil {
			return err
		}
		temp := filepath.Join(filepath.Dir(home), profiles.NewPrefix+name)
		if err := d.RemoveAll(temp); err != nil { // left by a crash
			return err
		}
		err := fillHome(s, d, temp, name)
		if err == nil {
			err = d.Rename(temp, home)
		}
		if err != nil {
			return errors.Join(err, d.RemoveAll(temp))
		}
		return nil
	})
	if err != nil {
		return profiles.Profile{}, fmt.Errorf("cannot create profile %q: %w", name, err)
	}
	return s.Profile(name)
}

func fillHome(s *profiles.Store, d *fsutil.Dir, home, name string) error {
	for _, dir := range [...]string{
		"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home",
	} {
		if err := d.Mkdir(filepath.Join(home, dir), 0o755); err != nil {
			return err
		}
	}
	if err := d.Replace(filepath.Join(home, ".env"), nil, fsutil.ReplaceOptions{Mode: 0o600}); err != nil {
		return err
	}
	soul := strings.Replace(soulTemplate, "%s", name, 1)
	return d.Replace(filepath.Join(home, s.Marker()), []byte(soul), fsutil.ReplaceOptions{Mode: 0o644})
}

// Delete removes the home of the profile called name, as the agent's user: what only root may remove makes it fail, and stays. The
// home is renamed first, so no program sees half a profile. When name is the active profile, the default one becomes active. The log
// directory isn't touched (contract, section 4). The caller has stopped the gateway. The error wraps [profiles.ErrName] or [profiles.ErrNotExist].
func Delete(s *profiles.Store, name string) error {
	if err := editable("delete", name); err != nil {
		return err
	}
	err := s.In(name, func(d *fsutil.Dir, home string) error {
		if err := present(d, home); err != nil {
			return err
		}
		if now, err := profiles.ActiveIn(d); err != nil && !profiles.IsOdd(err) {
			return err
		} else if now == name {
			if err := d.Remove(profiles.ActiveFile); err != nil {
				return err
			}
		}
		temp := filepath.Join(filepath.Dir(home), profiles.OldPrefix+name)
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

// Rename gives the profile from the name to. When it is the active one, it stays so. The caller has stopped the gateway.
// The error wraps [profiles.ErrName], [profiles.ErrNotExist] when there is no from, [profiles.ErrExists] when there is anything called to.
func Rename(s *profiles.Store, from, to string) error {
	if err := errors.Join(editable("rename", from), editable("rename", to)); err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("cannot rename profile %q to %q: %w", from, to, profiles.ErrExists)
	}
	err := s.In(from, func(d *fsutil.Dir, home string) error {
		if err := present(d, home); err != nil {
			return err
		}
		target := filepath.Join(filepath.Dir(home), to)
		if err := absent(d, target); err != nil {
			return err
		}
		now, err := profiles.ActiveIn(d)
		if err != nil && !profiles.IsOdd(err) {
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
	return d.Replace(profiles.ActiveFile, []byte(name+"\n"), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true})
}

// editable refuses names that can be neither created nor deleted nor renamed.
func editable(verb, name string) error {
	err := profiles.ValidName(name)
	if err == nil && name == profiles.Default {
		err = fmt.Errorf("%w %q: the root profile always exists", profiles.ErrName, name)
	}
	if err != nil {
		return fmt.Errorf("cannot %s profile %q: %w", verb, name, err)
	}
	return nil
}

func absent(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if err == nil {
		return profiles.ErrExists
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func present(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if errors.Is(err, fs.ErrNotExist) {
		return profiles.ErrNotExist
	}
	return err
}
