package proc

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// What would fail behind the fork is found before it: there only the log would show it.

// enters reports whether a process with these credentials may have the directory as its own, as far as the directory itself tells.
func enters(dir string, cred *Cred) bool {
	var st unix.Stat_t
	switch {
	case unix.Stat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return false
	case cred == nil:
		return unix.Access(dir, unix.X_OK) == nil
	}
	return executes(&st, cred)
}

// executes reports whether the mode of a file lets a process with these credentials execute it, or enter it.
func executes(st *unix.Stat_t, cred *Cred) bool {
	switch {
	case cred == nil, cred.UID == 0:
		return true
	case st.Uid == cred.UID:
		return st.Mode&0o100 != 0
	case st.Gid == cred.GID || slices.Contains(cred.Groups, st.Gid):
		return st.Mode&0o010 != 0
	}
	return st.Mode&0o001 != 0
}

// checkLimited finds what would fail where limits are set between the fork and the command: only the log would show it.
func checkLimited(spec Spec, path string) error {
	if err := checkSetup(&spec.Setup); err != nil {
		return err
	}
	for _, l := range spec.Limits {
		var now unix.Rlimit
		if unix.Getrlimit(l.Resource, &now) != nil || l.Hard <= now.Max {
			continue
		}
		what := limitName(l.Resource) + " to " + limitText(l.Hard)
		if !raises(spec.Cred) {
			return &SpawnError{Limit: true, What: what, Err: fmt.Errorf(
				"it is %s at most here; set less, or start the container with --ulimit %s=%s", limitText(now.Max), limitName(l.Resource), limitText(l.Hard),
			)}
		}
	}
	return checkCommand(spec, path)
}

// checkCommand finds what would fail when the process enters its directory and executes its command.
func checkCommand(spec Spec, path string) error {
	if spec.Dir != "" {
		if err := unfit(spec.Dir, unix.S_IFDIR, spec.Cred); err != nil {
			return &SpawnError{What: nameOf(spec.Dir), Err: err, Dir: true}
		}
		if !filepath.IsAbs(path) {
			path = spec.Dir + "/" + path
		}
	}
	if err := unfit(path, unix.S_IFREG, spec.Cred); err != nil {
		return spawnError(spec, path, err)
	}
	return nil
}

// unfit returns why a process with these credentials can't execute a file, or enter a directory, nil where that is not sure.
func unfit(path string, kind uint32, cred *Cred) error {
	var st unix.Stat_t
	switch err := unix.Stat(path, &st); {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return err
	case err != nil:
		return nil
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&unix.S_IFMT != kind, st.Mode&0o111 == 0:
		return unix.EACCES
	case executes(&st, cred):
		return nil
	}
	if _, err := unix.Getxattr(path, "system.posix_acl_access", nil); err != nil { // without a list the mode says it all
		return unix.EACCES
	}
	return nil
}

// raises reports whether a process with these credentials may raise a limit: with CAP_SYS_RESOURCE, which it keeps if it stays root.
func raises(cred *Cred) bool {
	if cred != nil && cred.UID != 0 {
		return false
	}
	return capable(unix.CAP_SYS_RESOURCE)
}
