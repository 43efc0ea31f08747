// Package manage creates, deletes and renames the homes of profiles for the command line. PID 1 notices the changes on the
// volume, as it notices changes by an agent. Only one goroutine of a process may call the package at a time. It owns no
// goroutine.
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

// soulTemplate is the marker file of a new profile; %s stands for the name.
const soulTemplate = `# %s

This file describes who this agent is: its role, its character, how it speaks and what it must not do.
Replace this text with your own.
`

// ErrExists means that a name is already in use.
var ErrExists = errors.New("the profile exists already")

// Create creates the profile name with its directories, an empty .env (mode 0600) and a marker, as the agent's own command does
// (contract, section 4). The home gets its name only when it is complete. The error wraps [profiles.ErrName] if the name isn't
// allowed, and [ErrExists] if it is in use.
func Create(s *profiles.Store, name string) (profiles.Profile, error) {
	if err := editable("create", name); err != nil {
		return profiles.Profile{}, err
	}
	err := s.WithHome(name, func(d *fsutil.Dir, home string) error {
		if err := checkAbsent(d, home); err != nil {
			return err
		}
		temp := filepath.Join(filepath.Dir(home), profiles.NewPrefix+name)
		if err := d.RemoveAll(temp); err != nil { // an interrupted command may have left this directory
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

// fillHome creates the directories and files of a new home, as the agent's own command does.
func fillHome(s *profiles.Store, d *fsutil.Dir, home, name string) error {
	for _, dir := range [...]string{"memories", "sessions", "skills", "skins", "logs", "plans", "workspace", "cron", "home"} {
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

// Delete removes the home of the profile name, with the identity of the agent's user. If some of the files can be removed only by
// root, Delete fails and keeps them. First the home gets a temporary name, so that no program sees half a profile. If the profile
// was active, the default profile becomes active. The log directory is kept (contract, section 4). The caller must have stopped
// the gateway. The error wraps [profiles.ErrName] or [profiles.ErrNotExist].
func Delete(s *profiles.Store, name string) error {
	if err := editable("delete", name); err != nil {
		return err
	}
	err := s.WithHome(name, func(d *fsutil.Dir, home string) error {
		if err := checkPresent(d, home); err != nil {
			return err
		}
		if now, err := profiles.ActiveIn(d); err != nil && !profiles.IsUnusableFile(err) {
			return err
		} else if now == name {
			if err := d.Remove(profiles.ActiveFile); err != nil {
				return err
			}
		}
		temp := filepath.Join(filepath.Dir(home), profiles.OldPrefix+name)
		if err := d.RemoveAll(temp); err != nil { // an interrupted command may have left this directory
			return err
		}
		if err := d.Rename(home, temp); err != nil { // Rename fails, for example, if the home is a mount point
			return d.RemoveAll(home)
		}
		if err := d.RemoveAll(temp); err != nil {
			return errors.Join(fmt.Errorf("%w; its other files are removed, and the rest has its old name again", err), d.Rename(temp, home))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot delete profile %q: %w", name, err)
	}
	return nil
}

// Rename gives the profile from the name to. An active profile stays active. The caller must have stopped the gateway. The error
// wraps [profiles.ErrName], [profiles.ErrNotExist] if the profile from doesn't exist, or [ErrExists] if the name to is in use.
func Rename(s *profiles.Store, from, to string) error {
	if err := errors.Join(editable("rename", from), editable("rename", to)); err != nil {
		return err
	}
	if from == to {
		return fmt.Errorf("cannot rename profile %q to %q: %w", from, to, ErrExists)
	}
	err := s.WithHome(from, func(d *fsutil.Dir, home string) error {
		if err := checkPresent(d, home); err != nil {
			return err
		}
		target := filepath.Join(filepath.Dir(home), to)
		if err := checkAbsent(d, target); err != nil {
			return err
		}
		now, err := profiles.ActiveIn(d)
		if err != nil && !profiles.IsUnusableFile(err) {
			return err
		}
		if now != from {
			return d.Rename(home, target)
		}
		// Change the active profile first. After a crash between the two steps, the user can then repeat the command.
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

// maxName is the maximum length of the name of a profile in the agent's command line.
const maxName = 64

// ValidName checks a name by the rules of the agent's command line. A valid name has 1 to 64 characters of a-z, 0-9, "_" and "-",
// begins with a letter or digit, and is no reserved word. "default", the name of the root profile, is valid. The error wraps
// [profiles.ErrName] and says which rule is broken. The name must be normalized, see [profiles.Normalize] (contract, section 4).
func ValidName(name string) error {
	err := profiles.NameProblem(name)
	switch {
	case name == profiles.Default:
		return nil
	case err == nil && len(name) > maxName:
		return fmt.Errorf("%w %q: it is longer than %d characters", profiles.ErrName, name, maxName)
	}
	return err
}

// editable returns an error for an invalid name, and for the default profile, which must stay. verb is the operation for the
// error.
func editable(verb, name string) error {
	err := ValidName(name)
	if err == nil && name == profiles.Default {
		err = fmt.Errorf("%w %q: the root profile always exists", profiles.ErrName, name)
	}
	if err != nil {
		return fmt.Errorf("cannot %s profile %q: %w", verb, name, err)
	}
	return nil
}

// checkAbsent returns [ErrExists] if a file of any kind exists at home.
func checkAbsent(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if err == nil {
		return ErrExists
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func checkPresent(d *fsutil.Dir, home string) error {
	_, err := d.Lstat(home)
	if errors.Is(err, fs.ErrNotExist) {
		return profiles.ErrNotExist
	}
	return err
}
