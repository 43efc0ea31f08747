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

// Failures after the fork are found before it: after the fork only the log would show them.

const (
	// findTime is how long a start waits for the look at its paths. After a look that was late none is taken for findPause.
	findTime  = time.Second
	findPause = 10 * time.Second
)

// find returns the program of a spec, and what would fail behind the fork. The paths of another user's process may lead anywhere, by links
// for minutes. So that user's rights count, and the caller waits a moment only. Then path is what the spec says, and the process finds out.
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

// look is find in the caller's goroutine.
func look(spec Spec) (path string, err error) {
	if path = spec.Path; path == "" {
		path, err = LookPath(spec.Argv[0], spec.Env)
		if spec.becomes() && errors.Is(err, unix.EACCES) { // this thread has no other groups of the user
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

// checkLimited finds what would fail where limits are set between the fork and the command: only the log would show it.
func checkLimited(spec Spec) error {
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
	return nil
}

// checkCommand finds what would fail when the process enters its directory and executes its command.
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

// unfit returns why this thread can't execute a file, or enter a directory. It returns nil where that is not sure for a process with these
// credentials, whose other groups the thread lacks.
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

// ofProcess reports whether a path leads through the descriptors of a process, as /proc/self/fd/3 and links to it do. They are this
// process's own here; the command finds its own there.
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

// raises reports whether a process with these credentials may raise a limit: with CAP_SYS_RESOURCE, which it keeps if it stays root.
func raises(cred *Cred) bool {
	if cred != nil && cred.UID != 0 {
		return false
	}
	return capable(unix.CAP_SYS_RESOURCE)
}
