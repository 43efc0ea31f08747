package archive

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
)

// openFile opens the regular file rel for reading. It never blocks, even if an agent puts a named pipe in place of the file.
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

// directory is an open directory. Paths are resolved relative to this directory, and no link can lead out of it.
type directory struct {
	*os.Root

	file *os.File // the directory itself, opened as a file
	name string   // name of the directory in its parent directory
}

// openReal opens the subdirectory called name of the directory in. It refuses a symbolic link, because an agent could have
// made the link.
func openReal(in *os.Root, name string) (*directory, error) {
	f, err := in.OpenFile(name, readFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &directory{root, f, name}
	if !d.isIn(in) {
		return nil, errors.Join(errors.New(name+" is a link; remove it"), d.Close())
	}
	return d, nil
}

// isIn reports whether the entry d.name of the directory other is still the directory d itself, and not a link to d.
func (d *directory) isIn(other *os.Root) bool {
	opened, err := d.file.Stat()
	there, lstatErr := other.Lstat(d.name)
	return err == nil && lstatErr == nil && os.SameFile(opened, there)
}

// lock opens and locks the subdirectory called name of the directory in. It fails immediately if another command holds the
// lock. The kernel releases the lock when the process ends.
func lock(in *os.Root, name string) (*directory, error) {
	d, err := openReal(in, name)
	if err != nil {
		return nil, err
	}
	if unix.Flock(int(d.file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !d.isIn(in) {
		return nil, errors.Join(errors.New("another command is using it; wait until that ends"), d.Close())
	}
	return d, nil
}

// removeUnused removes the subdirectories of d that no running command has locked. An interrupted command leaves its
// directory behind.
func (d *directory) removeUnused() {
	_ = eachEntry(d.Root, ".", func(name string) error {
		if old, err := lock(d.Root, name); err == nil {
			_ = errors.Join(d.RemoveAll(name), old.Close())
		}
		return nil
	})
}

// eachEntry calls the function do with the path of each entry of the directory dir. It reads few names at a time, because an agent
// may have made any number of them. The order is the order of the file system, which stays the same while nothing changes.
func eachEntry(in *os.Root, dir string, do func(rel string) error) error {
	f, err := in.OpenFile(dir, readFlags|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	err = fsutil.Entries(int(f.Fd()), func(name string, _ fs.FileMode) bool {
		failed = do(filepath.Join(dir, name))
		return failed == nil
	})
	return cmp.Or(failed, err)
}

// removeAll removes the file or directory called name in the directory dir. Unlike os.RemoveAll, it needs little memory for a tree
// of any depth.
func removeAll(dir, name string) error {
	d, err := fsutil.OpenDir(dir, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.RemoveAll(name)
}

// Close closes the directory and releases its lock.
func (d *directory) Close() error { return errors.Join(d.Root.Close(), d.file.Close()) }
