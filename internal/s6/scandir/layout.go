package scandir

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Default directories of s6.
const (
	DefaultScanDir = "/run/service"
	DefaultBaseDir = "/run/s6"
	// ScanDirVariable is the environment variable with the path of the scan directory, for hinit and for the agent's commands.
	ScanDirVariable = "S6_PROFILE_GATEWAY_SCANDIR"
)

// clearTimeout limits how long the boot waits for the removal of old files.
const clearTimeout = 3 * time.Second

const (
	scannerDir   = ".s6-svscan"
	lockFile     = scannerDir + "/lock"
	oldDirPrefix = ".hinit-old-"

	environmentDir = "container_environment"
)

// Layout describes the directories of s6.
type Layout struct {
	ScanDir string        // scan directory, as an absolute path
	BaseDir string        // directory of other files of s6, such as the container's environment
	Agent   *fsutil.Actor // agent's user, who owns the scan directory
	Env     []string      // container's environment, which with-contenv reads

	// Only tests set the following limits; 0 means the default.
	maxServices   int           // largest number of services
	clearTimeout  time.Duration // longest wait for the removal of old files
	completeAfter time.Duration // time from the last new slot until the slots are completed
	holdTimeout   time.Duration // time limit in a re-execution, for the pause of the scanner and again for reopening the slots

	self    *fsutil.Actor // identity of this process
	foreign *fsutil.Actor // identity of the agent's user, for paths that other programs have chosen
}

// withLimits returns l with defaults for limits that are 0. It also limits how many operations of its actors run at the same time
// (package internal/blocking).
func (l Layout) withLimits() Layout {
	l.maxServices, l.clearTimeout = cmp.Or(l.maxServices, maxServices), cmp.Or(l.clearTimeout, clearTimeout)
	l.completeAfter, l.holdTimeout = cmp.Or(l.completeAfter, missingFilesDelay), cmp.Or(l.holdTimeout, holdTimeout)
	l.self, l.foreign, l.Agent = fsutil.ProcessActor().WithPool(blocking.Runtime), l.Agent.WithPool(blocking.Foreign), l.Agent.WithPool(blocking.Runtime)
	return l
}

// prepare creates both directories, or empties them. It returns the scan directory, opened as the agent's user, and its lock.
// If another hinit uses the scan directory, it changes nothing and returns an error.
func (l Layout) prepare() (dir *fsutil.Dir, lock *os.File, err error) {
	if err := l.checkUnlocked(); err != nil {
		return nil, nil, err
	}
	base, err := l.emptyDir(l.BaseDir, l.self)
	if err != nil {
		return nil, nil, err
	}
	defer base.Close()
	if err := base.AddNodes(append([]fsutil.TreeNode{
		{Name: "basedir", Mode: fs.ModeDir | 0o755},
		{Name: environmentDir, Mode: fs.ModeDir | 0o755},
	}, envFiles(l.Env)...)); err != nil {
		return nil, nil, err
	}
	if dir, err = l.emptyDir(l.ScanDir, l.Agent); err != nil {
		return nil, nil, err
	}
	err = dir.MakeTree(scannerDir, 0o755, []fsutil.TreeNode{{Name: "control", Mode: fs.ModeNamedPipe | 0o600}, {Name: "lock", Mode: 0o600}}, nil)
	if err == nil {
		lock, err = l.takeLock()
	}
	if err != nil {
		_ = dir.Close()
		return nil, nil, err
	}
	return dir, lock, nil
}

// emptyDir returns the directory at path, opened as its owner, empty and with mode 0755. It replaces a directory that is not
// empty.
func (l Layout) emptyDir(path string, owner *fsutil.Actor) (*fsutil.Dir, error) {
	id := owner.Identity()
	by := l.removerAt(path, owner) // this depends on the owner, which changes below
	if dir, err := fsutil.OpenNoLink(path, owner); err == nil {
		if l.useEmptyDir(dir, id.UID) {
			return dir, nil
		}
		_ = dir.Close()
	}
	parent, err := l.openParent(path)
	if err != nil {
		return nil, err
	}
	d, err := l.recreateDir(parent, filepath.Base(path), by)
	if err != nil || !owner.SwitchesIdentity() {
		return d, err
	}
	defer d.Close()
	if _, _, err := d.Chown("", fsutil.Owner{UID: id.UID, GID: id.GID}); err != nil {
		return nil, err
	}
	return fsutil.OpenNoLink(path, owner)
}

// useEmptyDir gives an existing directory to owner. It reports whether the directory is empty and can be used.
func (l Layout) useEmptyDir(dir *fsutil.Dir, owner uint32) bool {
	_, _, err := dir.Chown("", fsutil.Owner{UID: owner, GID: l.self.Identity().GID})
	if err != nil {
		return false
	}
	entries, _, err := dir.ReadAtMost("", 1)
	if err == nil && len(entries) == 0 {
		err = dir.Chmod("", 0o755)
	}
	return err == nil && len(entries) == 0
}

// removerAt calls removerOf for a path. If the parent of path can't be opened, for instance because it is a link, it returns
// the identity of this process.
func (l Layout) removerAt(path string, owner *fsutil.Actor) *fsutil.Actor {
	parent, err := l.openParent(path)
	if err != nil {
		return l.self
	}
	defer parent.Close()
	return l.removerOf(parent, filepath.Base(path), owner)
}

// removerOf returns the identity for removing the files in a directory: owner, if owner owns the directory, and otherwise this
// process. The owner may have moved root's directory into its own directory, and root must not remove the files in it.
func (l Layout) removerOf(parent *fsutil.Dir, name string, owner *fsutil.Actor) *fsutil.Actor {
	info, err := parent.Lstat(name)
	if err == nil && owner.SwitchesIdentity() && fsutil.UID(info) == owner.Identity().UID {
		return owner
	}
	return l.self
}

// removeAll removes a directory: first its files with the identity by, and then the empty directory with the identity of this
// process.
func removeAll(parent *fsutil.Dir, name string, by *fsutil.Actor) error {
	if !by.SwitchesIdentity() {
		return parent.RemoveAll(name)
	}
	if err := removeAllIn(parent, name, by); err != nil {
		return err
	}
	return parent.Remove(name)
}

var errScanDirLocked = errors.New("another s6-svscan or hinit works there")

// checkUnlocked returns an error if another scanner has locked the scan directory. A scan directory other than DefaultScanDir
// must also be empty, or an old scan directory.
func (l Layout) checkUnlocked() error {
	if !filepath.IsAbs(l.ScanDir) || filepath.Dir(filepath.Clean(l.ScanDir)) == "/" {
		return fmt.Errorf("cannot use %q as the scan directory: expected an absolute path with two names or more", l.ScanDir)
	}
	lock, err := l.takeLock()
	_ = lock.Close() // after an error lock is nil, and Close does nothing
	if errors.Is(err, errScanDirLocked) {
		return err
	}
	if l.ScanDir == DefaultScanDir {
		return nil
	}
	return blocking.Do(blocking.Runtime, l.checkContent)
}

func (l Layout) checkContent() error {
	entries, err := os.ReadDir(l.ScanDir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
		return nil
	case err != nil:
		return fmt.Errorf("cannot use %q as the scan directory: %w", l.ScanDir, err)
	}
	if info, err := os.Lstat(filepath.Join(l.ScanDir, scannerDir)); err != nil || !info.IsDir() {
		return fmt.Errorf("cannot use %q as the scan directory: it holds other things, and would be wiped", l.ScanDir)
	}
	return nil
}

// takeLock locks the scan directory for this process. Close the returned file to release the lock.
func (l Layout) takeLock() (lock *os.File, err error) {
	err = l.Agent.Do(func() (err error) {
		lock, err = os.OpenFile(filepath.Join(l.ScanDir, lockFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot lock the scan directory: %w", err)
	}
	err = blocking.Do(blocking.Runtime, func() error { return unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errScanDirLocked
	}
	if err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("cannot lock the scan directory %q: %w", l.ScanDir, err)
	}
	return lock, nil
}

// recreateDir makes the directory name in parent anew, empty and with mode 0755, and closes parent. It moves an old directory
// aside and removes it in the background. Files that the identity by may not remove stay. It empties an old directory that
// can't be moved, for instance a mount point.
func (l Layout) recreateDir(parent *fsutil.Dir, name string, by *fsutil.Actor) (*fsutil.Dir, error) {
	aside := oldDirPrefix + name + "-" + strconv.FormatUint(rand.Uint64(), 36)
	cleared := make(chan error, 1)
	clearing := func() error {
		err := parent.Rename(name, aside)
		if errors.Is(err, unix.EXDEV) { // overlayfs can't rename a directory of a lower layer
			err = removeAll(parent, name, by)
		}
		switch {
		case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EROFS), errors.Is(err, fs.ErrPermission):
			err = removeAllIn(parent, name, by)
		case errors.Is(err, fs.ErrNotExist):
			err = nil
		}
		return err
	}
	guard.Go("clearing a directory of s6", func() { cleared <- clearing() })
	var err error
	select {
	case err = <-cleared:
	case <-time.After(l.clearTimeout): // the removal continues in the background
		guard.Go("removing what an s6 directory had", func() {
			if err := <-cleared; err == nil { // after a failed removal, the next boot tries again
				l.removeOld(parent, name)
			}
		})
		return nil, fmt.Errorf("cannot empty %q within %s: too much lies in it; it is being removed, restart the container later", filepath.Join(parent.Path(), name), l.clearTimeout)
	}
	if err == nil {
		err = parent.Mkdir(name, 0o755)
	}
	if err == nil {
		err = parent.Chmod(name, 0o755)
	}
	var d *fsutil.Dir
	if err == nil {
		d, err = parent.OpenSubdir(name)
	}
	guard.Go("removing what an s6 directory had", func() { l.removeOld(parent, name) })
	return d, err
}

// openParent opens the parent directory of path, and creates it if it is missing. It opens a parent of the agent with the
// identity of the agent. Otherwise the agent could make root remove any file by renaming directories.
func (l Layout) openParent(path string) (*fsutil.Dir, error) {
	parent, _, err := fsutil.MakeNoLink(filepath.Dir(path), 0o755, l.self)
	if err != nil || !l.Agent.SwitchesIdentity() {
		return parent, err
	}
	info, err := parent.Lstat("")
	if err == nil && fsutil.UID(info) != l.Agent.Identity().UID {
		return parent, nil
	}
	_ = parent.Close()
	if err != nil {
		return nil, err
	}
	return fsutil.OpenNoLink(filepath.Dir(path), l.Agent)
}

// removeAllIn removes all files in the directory name of parent, with the identity by.
func removeAllIn(parent *fsutil.Dir, name string, by *fsutil.Actor) error {
	open := parent.OpenSubdir
	if by.SwitchesIdentity() {
		open = func(name string) (*fsutil.Dir, error) {
			return fsutil.OpenNoLink(filepath.Join(parent.Path(), name), by)
		}
	}
	dir, err := open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		entries, more, err := dir.ReadAtMost("", fsutil.MaxDirNames)
		for _, e := range entries {
			err = errors.Join(err, dir.RemoveAll(e.Name()))
		}
		if err != nil || !more {
			return err
		}
	}
}

// removeOld removes the directories that recreateDir has moved aside, in this process or an earlier one. It ignores errors.
func (l Layout) removeOld(parent *fsutil.Dir, name string) {
	defer parent.Close()
	entries, _ := parent.ReadDir("")
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), oldDirPrefix+name+"-") {
			_ = removeAll(parent, e.Name(), l.removerOf(parent, e.Name(), l.Agent))
		}
	}
}

// envFiles returns a file for each variable, in the form for with-contenv. It adds a newline to a value that is empty or ends
// with a newline. It leaves out variables whose names with-contenv can't read.
func envFiles(env []string) []fsutil.TreeNode {
	values := make(map[string]string, len(env))
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		if !ok || name == "" || name[0] == '.' || len(name) > 255 || strings.Contains(name, "/") {
			continue
		}
		if value == "" || strings.HasSuffix(value, "\n") {
			value += "\n"
		}
		values[name] = value
	}
	nodes := make([]fsutil.TreeNode, 0, len(values))
	for name, value := range values {
		nodes = append(nodes, fsutil.TreeNode{Name: environmentDir + "/" + name, Mode: 0o644, Data: []byte(value)})
	}
	return nodes
}
