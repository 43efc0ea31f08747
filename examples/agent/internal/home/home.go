// Package home knows where profiles are on the disk. It finds the home directory for a command, makes profiles, and selects
// the profile of a command that names none.
//
// A name that CheckName accepts never leads outside of the profiles directory. The package owns no goroutines.
package home

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNoHome is returned by Resolve if neither HERMES_HOME nor HOME is set. Commands that need no home may continue.
var ErrNoHome = errors.New("cannot find a home directory: set HERMES_HOME or HOME")

// A Home is the set of directories in which a command works.
type Home struct {
	Root            string // Root directory: the home of the profile "default", and the parent of profiles/.
	Dir             string // Home of the selected profile.
	Profile         string // Name of the selected profile.
	SelectionNotice string // Message for the user about the selection, or "".
}

// An UnknownError means that the named profile has no directory.
type UnknownError struct{ Name string }

// Error returns the same message as the Hermes agent, without its "Error: " prefix.
func (e *UnknownError) Error() string {
	return fmt.Sprintf("Profile '%s' does not exist. Create it with: hermes profile create %s", e.Name, e.Name)
}

// Resolve finds the home for a command. named is the profile on the command line, or "".
//
// A named profile has priority; the name "default" then means the directory profiles/default, as in the Hermes agent. The
// next choice is HERMES_HOME, if it is the home of a named profile. The next is the profile in the file active_profile,
// unless a supervisor has started this process. The last is the root. If the profile in active_profile no longer exists,
// Resolve skips it and sets SelectionNotice, so that the command which repairs it can run.
func Resolve(getenv func(string) string, named string) (Home, error) {
	base, err := baseDir(getenv)
	if err != nil {
		return Home{}, err
	}
	h := Home{Root: base, Dir: base, Profile: DefaultProfile}
	if parent := filepath.Dir(base); filepath.Base(parent) == "profiles" {
		h.Root, h.Profile = filepath.Dir(parent), filepath.Base(base)
	}
	if named != "" {
		return h.selectNamed(Normalize(named))
	}
	supervised := getenv("HERMES_S6_SUPERVISED_CHILD") != "" || getenv("HERMES_SUPERVISED_CHILD") != ""
	if h.Dir != h.Root || supervised {
		return h, nil
	}
	active := h.ActiveProfile()
	if active == DefaultProfile {
		return h, nil
	}
	selected, err := h.selectNamed(active)
	if err != nil {
		h.SelectionNotice = fmt.Sprintf("active_profile names '%s', which does not exist: using the default profile", active)
		return h, nil
	}
	return selected, nil
}

func baseDir(getenv func(string) string) (string, error) {
	if dir := getenv("HERMES_HOME"); dir != "" {
		return filepath.Abs(dir)
	}
	if isDir("/opt/data") {
		return "/opt/data", nil
	}
	if dir := getenv("HOME"); dir != "" {
		return filepath.Abs(filepath.Join(dir, ".hermes"))
	}
	return "", ErrNoHome
}

func (h Home) selectNamed(name string) (Home, error) {
	if err := CheckName(name); err != nil && name != DefaultProfile {
		return Home{}, err
	}
	dir := filepath.Join(h.Root, "profiles", name)
	if !isDir(dir) {
		return Home{}, &UnknownError{name}
	}
	h.Dir, h.Profile = dir, name
	return h, nil
}

// ProfileDir returns the home directory of a profile, which may not exist. "default" is the root. name must be DefaultProfile or
// a name that CheckName accepts.
func (h Home) ProfileDir(name string) string {
	if name == DefaultProfile {
		return h.Root
	}
	return filepath.Join(h.Root, "profiles", name)
}

// Exists reports whether the profile has a directory.
func (h Home) Exists(name string) bool {
	return isDir(h.ProfileDir(name))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
