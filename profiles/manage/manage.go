// Package manage creates, deletes and renames the homes of profiles for the command line. PID 1
// notices the changes on the volume. Only one goroutine of a process may call the package at a
// time. It owns no goroutine.
package manage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
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
// (contract, section 4). The home gets its name only when it is complete. The error wraps [profiles.ErrInvalidName] if the name
// isn't allowed, and [ErrExists] if it is in use.
func Create(s *profiles.Store, name string) error {
	return changeProfiles(s, fmt.Sprintf("create profile %q", name), []string{name}, func(d *fsutil.Dir, home string, _ *os.File) error {
		if d.CheckExists(home) == nil {
			return ErrExists
		}
		temp := filepath.Join(filepath.Dir(home), profiles.NewPrefix+name)
		err := d.RemoveAll(temp) // Unlike the removal in changeProfiles, this one must succeed: fillHome would keep old files.
		if err == nil {
			err = fillHome(s, d, temp, name)
		}
		if err == nil {
			err = d.Rename(temp, home)
		}
		return errors.Join(err, d.RemoveAll(temp)) // After the rename, nothing is left to remove.
	})
}

// lockTimeout is how long a command waits for another command that creates, deletes or renames a profile. Then it continues
// without the lock, because the agent can hold the lock too. A test changes it.
var lockTimeout = 10 * time.Second

// changeProfiles calls fn with the volume and the home of the first profile in names, while no other command creates, deletes or
// renames a profile. Several commands would use the same temporary names, or change the active profile at once. fn may close
// lock, so that other commands can start. After lockTimeout, and on a file system without locks, changeProfiles works without the
// lock. It first removes what an interrupted Create or Delete has left, as far as it can. It adds doing to an error.
func changeProfiles(s *profiles.Store, doing string, names []string, fn func(d *fsutil.Dir, home string, lock *os.File) error) error {
	err := checkNames(names)
	if err == nil {
		err = s.WithHome(names[0], func(d *fsutil.Dir, home string) error {
			if err := d.Mkdir(filepath.Dir(home), 0o755); err != nil {
				return err
			}
			homes, err := d.OpenSubdir(filepath.Dir(home))
			if err != nil {
				return err
			}
			defer homes.Close()
			lock, _ := homes.Lock(waitForLock)
			defer lock.Close() // After an error lock is nil, and Close does nothing.
			_ = errors.Join(homes.RemoveAll(profiles.OldPrefix+names[0]), homes.RemoveAll(profiles.NewPrefix+names[0]))
			return fn(d, home, lock)
		})
	}
	if err != nil {
		return fmt.Errorf("cannot %s: %w", doing, err)
	}
	return nil
}

// waitForLock waits until dir is locked, or returns an error after lockTimeout.
func waitForLock(dir *os.File) error {
	err := error(unix.EWOULDBLOCK)
	for end := time.Now().Add(lockTimeout); errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end); {
		pause.For(context.Background(), 10*time.Millisecond)
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
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
// the gateway. The error wraps [profiles.ErrInvalidName] or [profiles.ErrNotExist].
func Delete(s *profiles.Store, name string) error {
	return changeProfiles(s, fmt.Sprintf("delete profile %q", name), []string{name}, func(d *fsutil.Dir, home string, lock *os.File) error {
		active, err := activeIfPresent(d, home)
		if err == nil && active == name {
			err = d.Remove(profiles.ActiveFile)
		}
		if err != nil {
			return err
		}
		temp := filepath.Join(filepath.Dir(home), profiles.OldPrefix+name)
		if err := d.Rename(home, temp); err != nil { // Rename fails, for example, if the home is a mount point.
			return d.RemoveAll(home)
		}
		_ = lock.Close() // Other commands need not wait until all files are removed.
		if err := d.RemoveAll(temp); err != nil {
			return errors.Join(fmt.Errorf("%w; its other files are removed, and the rest has its old name again", err), d.Rename(temp, home))
		}
		return nil
	})
}

// Rename gives the profile from the name to. An active profile stays active. The caller must have stopped the gateway. The error
// wraps [profiles.ErrInvalidName], [profiles.ErrNotExist] if the profile from doesn't exist, or [ErrExists] if the name to is in
// use.
func Rename(s *profiles.Store, from, to string) error {
	return changeProfiles(s, fmt.Sprintf("rename profile %q to %q", from, to), []string{from, to}, func(d *fsutil.Dir, home string, _ *os.File) error {
		active, err := activeIfPresent(d, home)
		if err != nil {
			return err
		}
		target := filepath.Join(filepath.Dir(home), to)
		if d.CheckExists(target) == nil {
			return ErrExists
		}
		if active != from {
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
}

func setActive(d *fsutil.Dir, name string) error {
	return d.Replace(profiles.ActiveFile, []byte(name+"\n"), fsutil.ReplaceOptions{Mode: 0o644, KeepMode: true})
}

// maxName is the maximum length of the name of a profile in the agent's command line.
const maxName = 64

// ValidName checks a name by the rules of the agent's command line. A valid name has 1 to 64 characters of a-z, 0-9, "_" and "-",
// begins with a letter or digit, and is no reserved word. "default", the name of the root profile, is valid. The error wraps
// [profiles.ErrInvalidName] and says which rule is broken. The name must be normalized, see [profiles.Normalize] (contract,
// section 4).
func ValidName(name string) error {
	err := profiles.NameProblem(name)
	switch {
	case name == profiles.Default:
		return nil
	case err == nil && len(name) > maxName:
		return fmt.Errorf("%w %q: it is longer than %d characters", profiles.ErrInvalidName, name, maxName)
	}
	return err
}

// checkNames returns an error if one of names is the name of no profile, or is the name of the default profile, which must stay.
func checkNames(names []string) error {
	for _, name := range names {
		if name == profiles.Default {
			return fmt.Errorf("%w %q: the root profile always exists", profiles.ErrInvalidName, name)
		}
		if err := ValidName(name); err != nil {
			return err
		}
	}
	return nil
}

// activeIfPresent returns the name of the active profile. It returns [profiles.ErrNotExist] if there is no file of any kind at home.
func activeIfPresent(d *fsutil.Dir, home string) (string, error) {
	if err := d.CheckExists(home); errors.Is(err, fs.ErrNotExist) {
		return "", profiles.ErrNotExist
	}
	active, err := profiles.ActiveIn(d)
	if profiles.IsUnusableFile(err) {
		err = nil
	}
	return active, err
}
