package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// PrepareHome makes the data directory and, as the agent's user, the directories that gateways log to. A data directory
// that belongs to somebody else than the agent's user is given to it, the directory alone and not what is in it. What
// can't be done is a warning, for gateways may still run with it; the error says that there is no data directory at all.
// It blocks as long as the disk does.
func PrepareHome(home, logs string, agent *fsutil.Actor) (warnings []string, err error) {
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the data directory %q: %w", home, errors.Unwrap(err))
	}
	if agent.Switches() {
		if err := giveTo(home, agent.Identity()); err != nil {
			warnings = append(warnings, fmt.Sprintf("cannot give %q to uid %d (rootless container?): %v", home, agent.Identity().UID, err))
		}
	}
	if err := makeLogs(home, logs, agent); err != nil {
		warnings = append(warnings, fmt.Sprintf("cannot make the log directory, logs reach only the container's log until it is there: %v", err))
	}
	return warnings, nil
}

// giveTo changes the owner of a directory through a descriptor of it.
func giveTo(dir string, id fsutil.Identity) error {
	f, err := os.OpenFile(dir, unix.O_DIRECTORY, 0)
	if err != nil {
		return errors.Unwrap(err)
	}
	defer f.Close() //nolint:errcheck // read only
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Uid == id.UID {
		return nil
	}
	return unix.Fchown(int(f.Fd()), int(id.UID), int(id.GID))
}

// makeLogs makes the log directory: beneath the data directory without following a link, elsewhere as the agent's user.
func makeLogs(home, logs string, agent *fsutil.Actor) error {
	rel, err := filepath.Rel(home, logs)
	if err != nil || !filepath.IsLocal(rel) {
		return agent.Do(func() error { return os.MkdirAll(logs, 0o755) })
	}
	d, err := fsutil.OpenDir(home, agent)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // read only
	if err := d.Mkdir(rel, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
