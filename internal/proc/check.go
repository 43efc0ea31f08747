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

// Some errors of a start would happen only after the fork, where only the log of the service would show them. The functions
// below find these errors before the fork.

const (
	// checkTime is the maximum time that a start waits while its paths are checked. If a check takes longer, findProgram does not
	// check any paths for the time checkPause.
	checkTime  = time.Second
	checkPause = 10 * time.Second
)

// findProgram returns the program of a spec, or an error that would otherwise happen only after the fork. If the process is
// for another user, that user controls where the paths lead, and following their links may take minutes. So findProgram
// checks the paths with the user's permissions, and gives up after checkTime. It then returns the path unchecked, and the
// new process reports errors itself.
func (t *Table) findProgram(spec Spec) (path string, err error) {
	if !spec.changesUser() {
		return checkProgram(spec)
	}
	if time.Now().Before(t.checksPausedUntil) {
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	var found string
	err = blocking.Within(ctx, blocking.Foreign, "looking at the command", func() (err error) {
		runAs(spec.Cred.UID, spec.Cred.GID, func() { found, err = checkProgram(spec) })
		return err
	})
	if ctx.Err() != nil {
		t.checksPausedUntil = time.Now().Add(checkPause)
		return cmp.Or(spec.Path, spec.Argv[0]), nil
	}
	return found, err
}

// checkProgram is the part of findProgram that may block.
func checkProgram(spec Spec) (path string, err error) {
	if path = spec.Path; path == "" {
		path, err = LookPath(spec.Argv[0], spec.Env)
		// a supplementary group, which this thread lacks, may allow the user to execute the command
		if spec.changesUser() && errors.Is(err, unix.EACCES) {
			return spec.Argv[0], nil
		}
		if err != nil {
			return "", &SpawnError{Object: spec.Argv[0], Err: err}
		}
	}
	if spec.needsSetup() {
		err = checkCommand(spec, path)
	}
	return path, err
}

// checkSettings finds errors in the settings of a spec. The new process applies the settings after the fork, as the program
// LimitsName, so only the log would show these errors.
func checkSettings(spec Spec) error {
	if err := checkSetup(&spec.Setup); err != nil {
		return err
	}
	for _, l := range spec.Limits {
		var now unix.Rlimit
		if unix.Getrlimit(l.Resource, &now) != nil || l.Hard <= now.Max {
			continue
		}
		what := LimitName(l.Resource) + " to " + LimitText(l.Hard)
		if !canRaiseLimits(spec.Cred) {
			return &SpawnError{Limit: true, Object: what, Err: fmt.Errorf(
				"it is %s at most here; set less, or start the container with --ulimit %s=%s", LimitText(now.Max), LimitName(l.Resource), LimitText(l.Hard),
			)}
		}
	}
	return nil
}

// checkCommand finds errors that would happen when the new process enters its directory and executes its command.
func checkCommand(spec Spec, path string) error {
	if spec.Dir != "" {
		if err := accessError(spec.Dir, unix.S_IFDIR, spec.Cred); err != nil {
			return &SpawnError{Object: spec.dirName(), Err: err, Dir: true}
		}
		if !filepath.IsAbs(path) {
			path = spec.Dir + "/" + path
		}
	}
	if err := accessError(path, unix.S_IFREG, spec.Cred); err != nil {
		return spawnError(spec, path, err)
	}
	return nil
}

// accessError returns an error if this thread can't execute the file at path, or enter the directory at path. kind is the
// expected file type (S_IFREG or S_IFDIR). If the supplementary groups of cred, which this thread lacks, may allow the access,
// accessError returns nil.
func accessError(path string, kind uint32, cred *Cred) error {
	if cred != nil && leadsToDescriptor(path) {
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

// leadsToDescriptor reports whether a path leads through the descriptors of a process, like /proc/self/fd/3 or a link to it.
// Such a path can't be checked here: it would lead to hinit's descriptors instead of the new process's.
func leadsToDescriptor(path string) bool {
	if strings.HasPrefix(path, "/proc/") {
		return true
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		unix.Close(fd)
	}
	return errors.Is(err, unix.ELOOP)
}

// canRaiseLimits reports whether a process with these credentials can raise a limit. That needs CAP_SYS_RESOURCE, which only
// root keeps.
func canRaiseLimits(cred *Cred) bool {
	return (cred == nil || cred.UID == 0) && hasCapability(unix.CAP_SYS_RESOURCE)
}
