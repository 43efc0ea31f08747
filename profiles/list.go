package profiles

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"hinit/internal/fsutil"
)

// Discover lists the profiles: first the default profile, then each directory in profiles/ that has the marker, in byte order. It
// leaves out profiles beyond the limit. It also leaves out directories with the marker that can't be a profile: profiles/default,
// a reserved or invalid name, a symbolic link. Each causes a warning. An error means that the volume can't be opened or listed;
// even then the list contains the default profile (contract, sections 4 and 5).
func (s *Store) Discover() ([]Profile, []Warning, error) {
	found := []Profile{s.profile(Default)}
	l, err := s.list(preferNone)
	for _, name := range l.marked {
		found = append(found, s.profile(name))
	}
	return found, l.warnings, err
}

// listing is the content of profiles/. Each list is in byte order. No list is longer than the limit on profiles.
type listing struct {
	marked          []string // Directories with the marker file (SOUL.md), which are the profiles.
	unmarked        []string // Directories that would be profiles if they had the marker file.
	profilesLeftOut bool     // Whether the volume has more profiles than the limit.
	unmarkedLeftOut bool     // Whether the volume has more directories without the marker file than the limit.
	silentDirs      []string // Directories that did not answer in time.
	dir             stamp    // Metadata of profiles/ before it was read; zero if it does not exist.
	warnings        []Warning
	warningsLeftOut bool // Whether the listing has more warnings than maxWarnings.
}

func preferNone(string, bool) bool { return false }

// list reads profiles/. A missing directory counts as empty. If profiles/ has more names than the limit on profiles, list keeps
// only some of them. First it keeps names for which prefer returns true; its argument marked says that the directory has the
// marker. Then it keeps profiles with a state file, because their gateways ran before.
func (s *Store) list(prefer func(name string, marked bool) bool) (listing, error) {
	l, err := s.listWithTimeout(prefer, false)
	if err == nil && l.profilesLeftOut {
		l, err = s.listWithTimeout(prefer, true)
	}
	if err == nil {
		l.warnLeftOut(s)
	}
	return l, err
}

// listWithTimeout reads profiles/ for list. It waits at most answerTimeout for each directory. If a directory doesn't answer, it
// reads profiles/ again without it. With ranBefore, it also prefers profiles that have a state file.
func (s *Store) listWithTimeout(prefer func(name string, marked bool) bool, ranBefore bool) (listing, error) {
	for {
		if s.isSilent(profilesDir) {
			return listing{}, &fs.PathError{Op: "read", Path: filepath.Join(s.root, profilesDir), Err: errNoAnswer}
		}
		l, err := examineEach(s, func(d *fsutil.Dir, at reportProgress) (l listing, err error) {
			err = d.WithIdentity(func(d *fsutil.Dir) error {
				l, err = s.listIn(d, at, prefer, ranBefore)
				return err
			})
			return l, err
		})
		var silent *fs.PathError
		if !errors.Is(err, errNoAnswer) || !errors.As(err, &silent) || filepath.Dir(silent.Path) != filepath.Join(s.root, profilesDir) {
			return l, err
		}
	}
}

// listIn examines each name in profiles/ of the volume d once. Before it accesses a directory, it calls at with the directory's
// path.
func (s *Store) listIn(d *fsutil.Dir, at reportProgress, prefer func(name string, marked bool) bool, ranBefore bool) (listing, error) {
	var l listing
	at(profilesDir)
	dir, err := d.OpenSubdir(profilesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	defer dir.Close()
	info, err := dir.Lstat(".")
	if err != nil {
		return l, err
	}
	l.dir = stampOf(info)
	careful := s.hangingCallCount() >= maxHangingCalls // One more hanging call would block the whole store, so skip mount points.
	marked, unmarked := selection{limit: s.maxProfiles}, selection{limit: s.maxProfiles}
	warn := func(name, format string, args ...any) {
		l.warnings = append(l.warnings, Warning{Profile: name, Message: fmt.Sprintf(format, args...)})
		if len(l.warnings) > 2*maxWarnings {
			l.trimWarnings()
		}
	}
	err = dir.EachName(".", func(name string, kind fs.FileMode) bool {
		if name[0] == '.' {
			return at(profilesDir) // A temporary directory of hinit or of another program.
		}
		if kind&fs.ModeSymlink != 0 {
			warn(name, "cannot use profile directory %q: it is a symbolic link, and links are never followed", name)
			return at(profilesDir)
		}
		if !kind.IsDir() {
			return at(profilesDir)
		}
		rel := filepath.Join(profilesDir, name)
		if s.isSilent(rel) || careful && isMount(dir, name) {
			l.silentDirs = append(l.silentDirs, name)
			warn(name, "cannot use profile directory %q: it does not answer (a mount whose server is gone?); it is looked at again when it does", name)
			return at(profilesDir)
		}
		if !at(rel) {
			return false
		}
		err := dir.CheckExists(filepath.Join(name, s.marker))
		impossible := NameProblem(name)
		switch missing := errors.Is(err, fs.ErrNotExist); {
		case err != nil && !missing:
			warn(name, "cannot use profile directory %q: %v", name, err)
			if impossible == nil {
				unmarked.add(name, prefer(name, false)) // The directory may get a marker later.
			}
		case missing && impossible == nil:
			unmarked.add(name, prefer(name, false))
		case missing:
		case name == Default:
			warn(name, "cannot use profile directory %q: the name belongs to the root profile, whose home is %q", name, s.root)
		case impossible != nil:
			warn(name, "cannot use profile directory %q: %v", name, impossible)
		default:
			marked.add(name, prefer(name, true) || ranBefore && dir.CheckExists(filepath.Join(name, StateFile)) == nil)
		}
		return true
	})
	l.trimWarnings()
	l.marked, l.profilesLeftOut = marked.names()
	l.unmarked, l.unmarkedLeftOut = unmarked.names()
	return l, err
}

// isMount reports whether a directory is a mount point. It doesn't access the mounted file system, because that could hang.
func isMount(d *fsutil.Dir, name string) bool {
	sub, err := d.OpenSubdirSameMount(name)
	if err == nil {
		sub.Close()
	}
	return errors.Is(err, fsutil.ErrMount)
}

// maxWarnings is the maximum number of warnings about unusable directories in a listing.
const maxWarnings = 40

// trimWarnings sorts the warnings by profile, and keeps the first maxWarnings.
func (l *listing) trimWarnings() {
	slices.SortStableFunc(l.warnings, func(a, b Warning) int { return strings.Compare(a.Profile, b.Profile) })
	if len(l.warnings) > maxWarnings {
		l.warnings, l.warningsLeftOut = l.warnings[:maxWarnings], true
	}
}

// warnLeftOut adds a warning for each kind of entry that was left out: warnings, profiles, directories without the marker. The
// texts of these warnings are constant, so that the watcher reports each of them only once.
func (l *listing) warnLeftOut(s *Store) {
	path := filepath.Join(s.root, profilesDir)
	if l.warningsLeftOut {
		l.warnings = append(l.warnings, Warning{Message: fmt.Sprintf("%q has more directories that cannot be used", path)})
	}
	if l.profilesLeftOut {
		l.warnings = append(l.warnings, Warning{Message: s.limitError().Error()})
	}
	if l.unmarkedLeftOut {
		l.warnings = append(l.warnings, Warning{Message: fmt.Sprintf(
			"%q has more than %d directories without %s; one of the others that gets it is found when it is asked for by name, or after a rescan. Remove what is no profile, or raise profiles.max in hinit.yaml",
			path, s.maxProfiles, s.marker,
		)})
	}
}

// limitError returns the warning that the volume has more profiles than the limit.
func (s *Store) limitError() error {
	return fmt.Errorf("%q has more than %d profiles, and the others are left out: raise profiles.max in hinit.yaml, or remove some", filepath.Join(s.root, profilesDir), s.maxProfiles)
}

// selection keeps a limited number of the names that are added: first preferred names, then the first names in byte order.
type selection struct {
	limit                  int
	preferred, unpreferred []string
	dropped                bool
}

func (s *selection) add(name string, preferred bool) {
	names := &s.unpreferred
	if preferred {
		names = &s.preferred
	}
	*names = append(*names, name)
	if len(*names) >= 2*s.limit+64 {
		s.trim(names, s.limit)
	}
}

// trim keeps the first `limit` names of a list in byte order.
func (s *selection) trim(names *[]string, limit int) {
	slices.Sort(*names)
	if len(*names) > limit {
		*names, s.dropped = slices.Delete(*names, limit, len(*names)), true
	}
}

// names returns the kept names in byte order. dropped reports whether names were dropped.
func (s *selection) names() (names []string, dropped bool) {
	s.trim(&s.preferred, s.limit)
	s.trim(&s.unpreferred, s.limit-len(s.preferred))
	names = append(s.preferred, s.unpreferred...)
	slices.Sort(names)
	return names, s.dropped
}

const envFile = ".env"

// Active returns the profile that the agent's commands use unless they name another. It is the content of the file
// active_profile, or "default" if the file is missing. The profile need not exist (contract, section 4). A symbolic link instead
// of the file is an error.
func (s *Store) Active() (string, error) {
	d, err := s.open()
	if err != nil {
		return Default, err
	}
	defer d.Close()
	return ActiveIn(d)
}

// ActiveIn is [Store.Active] for an open volume.
func ActiveIn(d *fsutil.Dir) (string, error) {
	data, err := d.ReadFile(ActiveFile, maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return Default, nil
	}
	if IsUnusableFile(err) {
		return Default, fmt.Errorf("no profile is selected, for %w; remove %s", err, filepath.Join(d.Path(), ActiveFile))
	}
	return cmp.Or(Normalize(string(data)), Default), err
}

// IsUnusableFile reports whether err means that a small text file can never be read, because it is a symbolic link, too large, or
// not a regular file.
func IsUnusableFile(err error) bool {
	return errors.Is(err, fsutil.ErrSymlink) || errors.Is(err, fsutil.ErrNotRegular) || errors.Is(err, fsutil.ErrTooLarge)
}

// Prefixes of the temporary names of homes that are being created or deleted. A profile's name has no dot, so no profile has such
// a name.
const (
	NewPrefix = ".new-"
	OldPrefix = ".old-"
)

// temporaryLifetime says how long a directory with each prefix is kept after its last change. An interrupted import (package
// archive) can continue for a week.
var temporaryLifetime = map[string]time.Duration{NewPrefix: 0, OldPrefix: 0, ".import-": 7 * 24 * time.Hour}

// RemoveTemporaries removes directories that an interrupted Create, Delete (package manage) or import has left. It keeps
// directories that have changed at or after the time before, because another process may be using them.
func (s *Store) RemoveTemporaries(before time.Time) error {
	err := s.withVolume(func(d *fsutil.Dir) (err error) {
		_ = d.EachName(profilesDir, func(name string, _ fs.FileMode) bool { // Ignore errors: the scan of profiles reports them.
			if kept, temporary := temporaryLifetime[name[:strings.IndexByte(name, '-')+1]]; temporary {
				path := filepath.Join(profilesDir, name)
				if info, gone := d.Lstat(path); gone == nil && info.ModTime().Before(before.Add(-kept)) {
					if kept > 0 { // A longer time than 0 applies to imports only.
						err = cmp.Or(err, removeFilesOfImport(d, path))
					}
					err = cmp.Or(err, d.RemoveAll(path))
				}
			}
			return true
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot remove what a profile command that was cut short has left: %w", err)
	}
	return nil
}

// removeFilesOfImport removes the files in the directory of an import. In the directory of an isolated profile, which no other user
// can enter, it acts as the profile's user. It keeps the home of such a profile, because the agent's user may have renamed that to the
// name of an import.
func removeFilesOfImport(d *fsutil.Dir, path string) (err error) {
	if dir, subErr := d.OpenSubdir(path); subErr == nil {
		defer dir.Close()
		if errors.Is(dir.CheckExists(".hinit-profile"), fs.ErrNotExist) {
			_ = dir.EachName("", func(name string, _ fs.FileMode) bool {
				err = cmp.Or(err, dir.RemoveAll(name))
				return true
			})
		}
	}
	return err
}
