package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// Some errors of a start would happen only after the fork, where only the log shows them. The functions below find these errors
// before the fork.

const (
	// findTime limits the wait of a start for the check of its paths. After a longer check, find checks no path for the time
	// findPause.
	findTime  = time.Second
	findPause = 10 * time.Second
)

// find returns the program of a spec, or an error that would otherwise happen after the fork. The paths of another user's process
// may lead anywhere, and following their links may take minutes. So find uses that user's permissions, and gives up after
// findTime. It then returns the path without a check, and the new process reports errors itself.
func (t *Table) find(spec Spec) (path string, err error) {
	if !spec.becomes() {
		return look(spec)
	}
	if time.Now().Before(t.findAt) {
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), findTime)
	defer cancel()
	var found string
	err = blocking.Within(ctx, blocking.Foreign, "looking at the command", func() (err error) {
		as(spec.Cred.UID, spec.Cred.GID, func() { found, err = look(spec) })
		return err
	})
	if ctx.Err() != nil {
		t.findAt = time.Now().Add(findPause)
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	return found, err
}

// look does the part of find that may block.
func look(spec Spec) (path string, err error) {
	if path = spec.Path; path == "" {
		path, err = LookPath(spec.Argv[0], spec.Env)
		// a supplementary group, which this thread lacks, may allow the user to execute the command
		if spec.becomes() && errors.Is(err, unix.EACCES) {
			return spec.Argv[0], nil
		}
		if err != nil {
			return "", &SpawnError{What: spec.Argv[0], Err: err}
		}
	}
	if spec.limited() {
		err = checkCommand(spec, path)
	}
	return path, err
}

// checkLimited returns errors that would happen in the program behind LimitsName, where only the log shows them.
func checkLimited(spec Spec) error {
	if err := checkSetup(&spec.Setup); err != nil {
		return err
	}
	for _, l := range spec.Limits {
		var now unix.Rlimit
		if unix.Getrlimit(l.Resource, &now) != nil || l.Hard <= now.Max {
			continue
		}
		what := LimitName(l.Resource) + " to " + LimitText(l.Hard)
		if !raises(spec.Cred) {
			return &SpawnError{Limit: true, What: what, Err: fmt.Errorf(
				"it is %s at most here; set less, or start the container with --ulimit %s=%s", LimitText(now.Max), LimitName(l.Resource), LimitText(l.Hard),
			)}
		}
	}
	return nil
}

// checkCommand returns errors that would happen when the process enters its directory and executes its command.
func checkCommand(spec Spec, path string) error {
	if spec.Dir != "" {
		if err := unfit(spec.Dir, unix.S_IFDIR, spec.Cred); err != nil {
			return &SpawnError{What: spec.dirName(), Err: err, Dir: true}
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

// unfit returns why this thread can't execute a file or enter a directory. It returns nil if the supplementary groups of cred,
// which this thread lacks, may allow the access.
func unfit(path string, kind uint32, cred *Cred) error {
	if cred != nil && ofProcess(path) {
		return nil
	}
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case errors.Is(err, unix.EACCES) && cred != nil:
		return nil
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != kind && kind == unix.S_IFDIR:
		return unix.ENOTDIR
	case st.Mode&unix.S_IFMT != kind:
		return unix.EACCES
	}
	err = unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
	if cred != nil && slices.Contains(cred.Groups, st.Gid) {
		return nil
	}
	return err
}

// ofProcess reports whether a path leads through the descriptors of a process, like /proc/self/fd/3 or a link to it. Such a path
// can't be checked: here it means this process's own descriptors, but in the command the command's.
func ofProcess(path string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return true
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ELOOP)
}

// raises reports whether a process with these credentials can raise a limit. That needs CAP_SYS_RESOURCE, which root keeps.
func raises(cred *Cred) bool {
	if cred != nil && cred.UID != 0 {
		return false
	}
	return capable(unix.CAP_SYS_RESOURCE)
}
