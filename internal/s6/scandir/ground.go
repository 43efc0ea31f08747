package scandir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Where s6 is looked for.
const (
	DefaultScan = "/run/service"
	DefaultBase = "/run/s6"
	// ScanVariable names the scan directory, for the agent's commands and for hinit alike.
	ScanVariable = "S6_PROFILE_GATEWAY_SCANDIR"
)

// clearPatience is how long the boot waits until what the agent has left in a directory of s6 is removed.
const clearPatience = 3 * time.Second

const (
	scannerDir = ".s6-svscan"
	lockFile   = scannerDir + "/lock"
	oldPrefix  = ".hinit-old-"
)

// Ground is what the directories of s6 are made of.
type Ground struct {
	Scan  string        // scan directory, an absolute path
	Base  string        // the other directory of s6
	Agent *fsutil.Actor // whom the scan directory belongs to
	Env   []string      // the container's environment, for with-contenv

	most int // services that it may hold, 0 for maxServices

	patience time.Duration // with what is to be removed, 0 for clearPatience

	self    *fsutil.Actor // the process itself
	foreign *fsutil.Actor // the agent's user where somebody else says what is read
}

// inTurn makes all that is done on the ground take turns.
func (g Ground) inTurn() Ground {
	g.self, g.foreign, g.Agent = fsutil.Self().In(blocking.Runtime), g.Agent.In(blocking.Foreign), g.Agent.In(blocking.Runtime)
	return g
}

// prepare wipes and makes both directories and returns the scan directory, opened as the agent's user, and its lock. It
// leaves them alone when another hinit works there.
func (g Ground) prepare() (dir *fsutil.Dir, lock *os.File, err error) {
	if err := g.free(); err != nil {
		return nil, nil, err
	}
	base, err := g.fresh(g.Base)
	if err != nil {
		return nil, nil, err
	}
	defer base.Close()
	// Only root, or whoever hinit is, can write here: plain names are safe.
	for _, name := range []string{"basedir", "container_environment"} {
		if err := base.Mkdir(name, 0o755); err != nil {
			return nil, nil, err
		}
		if _, err := base.Chmod(name, 0o755); err != nil {
			return nil, nil, err
		}
	}
	if err := dumpEnv(base, "container_environment", g.Env); err != nil {
		return nil, nil, err
	}
	if dir, err = g.scanDir(); err != nil {
		return nil, nil, err
	}
	err = dir.MakeTree(scannerDir, 0o755, []fsutil.Node{
		{Name: "control", Mode: fs.ModeNamedPipe | 0o600},
		{Name: "lock", Mode: 0o600},
	})
	if err == nil {
		lock, err = g.takeLock()
	}
	if err != nil {
		_ = dir.Close() // nothing was written through it
		return nil, nil, err
	}
	return dir, lock, nil
}

// scanDir makes the scan directory empty and the agent's. One that is the agent's already, such as that of the image, stays.
func (g Ground) scanDir() (*fsutil.Dir, error) {
	if dir, err := fsutil.OpenReal(g.Scan, g.Agent); err == nil {
		info, err := dir.Lstat("")
		if err == nil && info.Sys().(*syscall.Stat_t).Uid == g.Agent.Identity().UID && few(dir, "") {
			err = clearOut(dir, "")
			if err == nil {
				_, err = dir.Chmod("", 0o755)
			}
			if err == nil {
				return dir, nil
			}
		}
		_ = dir.Close() // nothing was written through it
	}
	scan, err := g.fresh(g.Scan)
	if err != nil {
		return nil, err
	}
	defer scan.Close()
	if g.Agent.Switches() {
		id := g.Agent.Identity()
		if _, _, err := scan.Chown("", fsutil.Owner{UID: id.UID, GID: id.GID}); err != nil {
			return nil, err
		}
	}
	return fsutil.OpenReal(g.Scan, g.Agent)
}

// errTaken says that somebody else scans the directory.
var errTaken = errors.New("another s6-svscan or hinit works there")

// free refuses a scan directory that must not be wiped: one that another scanner has locked, or one outside of /run that
// has never been a scan directory.
func (g Ground) free() error {
	if !filepath.IsAbs(g.Scan) || filepath.Dir(filepath.Clean(g.Scan)) == "/" {
		return fmt.Errorf("cannot use %q as the scan directory: expected an absolute path with two names or more", g.Scan)
	}
	lock, err := g.takeLock()
	if lock != nil {
		_ = lock.Close() // it was only a question
	}
	if errors.Is(err, errTaken) {
		return err
	}
	if g.Scan == DefaultScan {
		return nil
	}
	return blocking.Do(blocking.Runtime, g.ours)
}

// ours refuses a scan directory that has never been one.
func (g Ground) ours() error {
	entries, err := os.ReadDir(g.Scan)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("cannot use %q as the scan directory: %w", g.Scan, err)
	}
	if info, err := os.Lstat(filepath.Join(g.Scan, scannerDir)); err != nil || !info.IsDir() {
		return fmt.Errorf("cannot use %q as the scan directory: it holds other things, and would be wiped", g.Scan)
	}
	return nil
}

// takeLock locks the scan directory for this process. The lock ends with the file.
func (g Ground) takeLock() (lock *os.File, err error) {
	err = g.Agent.Do(func() (err error) {
		const flags = os.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
		lock, err = os.OpenFile(filepath.Join(g.Scan, lockFile), flags, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot lock the scan directory: %w", err)
	}
	err = blocking.Do(blocking.Runtime, func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errTaken
	}
	if err != nil {
		_ = lock.Close() // nothing was written through it
		return nil, fmt.Errorf("cannot lock the scan directory %q: %w", g.Scan, err)
	}
	return lock, nil
}

// fresh makes an empty directory at path, mode 0755, and returns it. What was there is removed; where that is much, it is moved
// aside and removed in the background. What can't be removed itself is emptied: a mount point, or a directory that the
// build of the image has made for a user who may not write above it.
func (g Ground) fresh(path string) (*fsutil.Dir, error) {
	parent, _, err := fsutil.MakeReal(filepath.Dir(path), 0o755, g.self)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	aside := oldPrefix + name + "-" + strconv.FormatUint(rand.Uint64(), 36)
	cleared := make(chan error, 1)
	clearing := func() error {
		var err error
		if few(parent, name) {
			err = parent.RemoveAll(name)
		} else if err = parent.Rename(name, aside); errors.Is(err, unix.EXDEV) { // of a lower layer of the image
			err = parent.RemoveAll(name)
		}
		switch {
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
			err = clearOut(parent, name)
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
		return err
	}
	guard.Go("clearing a directory of s6", func() { cleared <- clearing() })
	limit := cmp.Or(g.patience, clearPatience)
	patience := time.NewTimer(limit)
	defer patience.Stop()
	select {
	case err = <-cleared:
	case <-patience.C: // it goes on, so that another boot finds less
		guard.Go("removing what an s6 directory had", func() {
			if err := <-cleared; err == nil { // else it is for another boot
				removeOld(parent, name)
			}
		})
		return nil, fmt.Errorf("cannot empty %q within %s: too much lies in it; it is being removed, restart the container later", path, limit)
	}
	if err == nil {
		err = parent.Mkdir(name, 0o755)
	}
	if err == nil {
		_, err = parent.Chmod(name, 0o755)
	}
	var d *fsutil.Dir
	if err == nil {
		d, err = parent.Sub(name)
	}
	go removeOld(parent, name)
	return d, err
}

// fewFiles is how many names a directory may have in it, at any depth, to be removed while the boot waits.
const fewFiles = 2000

// few reports whether it takes hardly any time to remove a directory.
func few(in *fsutil.Dir, name string) bool {
	left := fewFiles
	return fewer(in, name, &left)
}

func fewer(in *fsutil.Dir, name string, left *int) bool {
	entries, more, err := in.ReadSome(name, *left)
	if *left -= len(entries); err != nil || more {
		return false
	}
	for _, e := range entries {
		if e.IsDir() && !fewer(in, path.Join(name, e.Name()), left) {
			return false
		}
	}
	return true
}

// clearOut empties a directory that cannot be moved.
func clearOut(parent *fsutil.Dir, name string) error {
	for {
		entries, more, err := parent.ReadSome(name, fsutil.MostNames)
		for _, e := range entries {
			err = errors.Join(err, parent.RemoveAll(path.Join(name, e.Name())))
		}
		if err != nil || !more {
			return err
		}
	}
}

// removeOld removes what was moved aside, by this process or by one that did not come to it. What can't be removed stays.
func removeOld(parent *fsutil.Dir, name string) {
	defer parent.Close()
	entries, _ := parent.ReadDir("")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), oldPrefix+name+"-") {
			_ = parent.RemoveAll(e.Name())
		}
	}
}

// dumpEnv writes one file per variable, as with-contenv reads them: an empty value is a single newline, and one newline at
// the end is taken off. Names that can't be read back are left out.
func dumpEnv(base *fsutil.Dir, dir string, env []string) error {
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || name[0] == '.' || len(name) > 255 || strings.Contains(name, "/") {
			continue
		}
		if value == "" || strings.HasSuffix(value, "\n") {
			value += "\n"
		}
		rel := dir + "/" + name
		if err := base.Remove(rel); err != nil && !errors.Is(err, fs.ErrNotExist) { // a variable that is there twice
			return err
		}
		if _, err := base.Append(rel, []byte(value), 0o644); err != nil {
			return err
		}
		if _, err := base.Chmod(rel, 0o644); err != nil {
			return err
		}
	}
	return nil
}
