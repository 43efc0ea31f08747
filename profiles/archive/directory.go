package archive

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// openFile opens the regular file rel for reading. It never blocks: if an agent has put a named pipe there, it returns an error.
func openFile(in *os.Root, rel string) (f *os.File, info fs.FileInfo, err error) {
	if f, err = in.OpenFile(rel, readFlags, 0); err != nil {
		return nil, nil, err
	}
	info, err = f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "read", Path: rel, Err: unix.EINVAL}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// lstat returns the status of the file rel. If the file is a symbolic link, it also returns the link's target.
func lstat(in *os.Root, rel string) (info fs.FileInfo, target string, err error) {
	info, err = in.Lstat(rel)
	if err == nil && info.Mode().Type() == fs.ModeSymlink {
		target, err = in.Readlink(rel)
	}
	return info, target, err
}

// directory is an open directory below which files can be opened. The embedded os.Root follows no link that leads out of the
// directory.
type directory struct {
	*os.Root

	file *os.File // The directory as a file, for flock and fstat.
	name string   // Name in the parent directory.
}

// openNoLink opens the subdirectory name of in. It refuses a symbolic link, because an agent could have made the link.
func openNoLink(in *os.Root, name string) (*directory, error) {
	f, err := in.OpenFile(name, readFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &directory{root, f, name}
	if !d.isStillIn(in) {
		return nil, errors.Join(errors.New(name+" is a link; remove it"), d.Close())
	}
	return d, nil
}

// isStillIn reports whether the name of d in the directory other still leads to d. Another process may have removed or replaced d.
func (d *directory) isStillIn(other *os.Root) bool {
	opened, err := d.file.Stat()
	there, lstatErr := other.Lstat(d.name)
	return err == nil && lstatErr == nil && os.SameFile(opened, there)
}

// openLocked opens the subdirectory name of in and locks it (flock(2)). If another command holds the lock, it fails at once. Closing
// the directory, or the end of the process, releases the lock.
func openLocked(in *os.Root, name string) (*directory, error) {
	d, err := openNoLink(in, name)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(d.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !d.isStillIn(in) {
		return nil, errors.Join(errors.New("another command is using it; wait until that ends"), d.Close())
	}
	return d, nil
}

// removeUnused removes the subdirectories of d that no process has locked. Interrupted commands have left them.
func (d *directory) removeUnused() {
	_ = eachEntry(d.Root, ".", func(name string) error {
		if old, err := openLocked(d.Root, name); err == nil {
			_ = errors.Join(d.RemoveAll(name), old.Close())
		}
		return nil
	})
}

// eachEntry calls do with the path of each entry of the directory dir. It reads only a few names at a time, because an agent can
// make any number of entries. The file system determines the order, which stays the same while nothing changes.
func eachEntry(in *os.Root, dir string, do func(rel string) error) error {
	f, err := in.OpenFile(dir, readFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	err = fsutil.EachEntry(int(f.Fd()), func(name string, _ fs.FileMode) bool {
		failed = do(filepath.Join(dir, name))
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// removeAll removes the file or directory name in the directory dir. Unlike os.RemoveAll, it needs little memory even for a very
// deep tree.
func removeAll(dir, name string) error {
	d, err := fsutil.OpenDir(dir, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	if err = d.RemoveAll(name); errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; remove it as root", err)
	}
	return err
}

// Close closes the directory and releases its lock.
func (d *directory) Close() error { return errors.Join(d.Root.Close(), d.file.Close()) }
