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

// Info describes one profile in the result of [Store.List].
type Info struct {
	Profile Profile
	Active  bool  // the agent's commands use this profile when no name is given
	State   State // state of the gateway, see [Store.ReadState]
}

// List describes each profile that [Store.Discover] finds, in the same order. For a state file that can't be read, it adds a
// warning and returns the zero State.
func (s *Store) List() ([]Info, []Warning, error) {
	found, warnings, err := s.Discover()
	if err != nil {
		return nil, warnings, err
	}
	active, activeErr := s.Active()
	if activeErr != nil {
		warnings = append(warnings, Warning{Path: filepath.Join(s.root, ActiveFile), Message: "cannot tell which profile is active: " + activeErr.Error()})
	}
	infos := make([]Info, len(found))
	for i, p := range found {
		st, err := s.ReadState(p.Name)
		if err != nil {
			warnings = append(warnings, Warning{Profile: p.Name, Path: filepath.Join(p.Home, stateFile), Message: stateError(p.Name, err).Error()})
		}
		infos[i] = Info{Profile: p, Active: p.Name == active, State: st}
	}
	return infos, warnings, nil
}

// Active returns the profile that the agent's commands use when no name is given. It is the content of the file active_profile,
// or "default" without the file. The profile need not exist (contract, section 4). If the file is a symbolic link, Active returns
// an error and does not follow it.
func (s *Store) Active() (string, error) {
	d, err := s.open()
	if err != nil {
		return Default, err
	}
	defer d.Close()
	return ActiveIn(d)
}

// ActiveIn works like [Store.Active], for a volume that is already open.
func ActiveIn(d *fsutil.Dir) (string, error) {
	data, err := d.ReadFile(ActiveFile, maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return Default, nil
	}
	if IsUnusableFile(err) {
		return Default, fmt.Errorf("no profile is selected, for %w; remove %s", err, filepath.Join(d.Path(), ActiveFile))
	}
	if name := Normalize(string(data)); name != "" {
		return name, err
	}
	return Default, err
}

// IsUnusableFile reports whether err means that a small text file is unusable: it is a symbolic link, too large, or not a regular
// file.
func IsUnusableFile(err error) bool {
	return errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrNotRegular) || errors.Is(err, fsutil.ErrTooLarge)
}

// Prefixes of the temporary directory names under which homes are created or deleted. A profile name contains no dot, so no
// profile has such a name.
const (
	NewPrefix = ".new-"
	OldPrefix = ".old-"
)

// RemoveTemporaries removes the temporary directories of an interrupted Create or Delete (see package manage). It keeps a
// directory that changed at or after the time before, because another process may still use the directory.
func (s *Store) RemoveTemporaries(before time.Time) error {
	err := s.withVolume(func(d *fsutil.Dir) error {
		var left []string
		_ = d.EachName(profilesDir, func(name string, _ fs.FileMode) bool { // ignore errors: the scan of profiles reports them
			if strings.HasPrefix(name, NewPrefix) || strings.HasPrefix(name, OldPrefix) {
				left = append(left, name)
			}
			return len(left) < fsutil.MaxNames
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
