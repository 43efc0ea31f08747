package fsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenReal opens the directory at path, which must be absolute, for somebody who is about to change what it belongs to. It
// differs from [OpenDir] in what links it follows: none in the last place, and none in a directory that somebody else than
// root can write. What is left are the links of the image, which nobody but root could have made. A nil actor is [Self].
func OpenReal(path string, a *Actor) (*Dir, error) {
	d, _, err := openReal("open directory", path, 0, a)
	return d, err
}

// MakeReal is [OpenReal] that makes the directory and the missing ones above it with the given permission bits (less the
// umask). It reports whether the directory itself had to be made.
func MakeReal(path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	return openReal("make directory", path, mode.Perm()|makeMissing, a)
}

// makeMissing marks a mode that says how to make a directory, even one without permissions.
const makeMissing = fs.ModeDir

func openReal(verb, path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	if a == nil {
		a = Self()
	}
	d = newDir(path, a)
	err = a.Do(func() (err error) {
		d.fd, made, err = walkReal(path, mode)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("cannot %s %q: %w", verb, path, err)
	}
	return d, made, nil
}

func walkReal(path string, mode fs.FileMode) (fd int, made bool, err error) {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return -1, false, fmt.Errorf("not an absolute path: %w", fs.ErrInvalid)
	}
	names, err := components(strings.TrimLeft(filepath.Clean(path), "/"))
	if err != nil {
		return -1, false, err
	}
	fd, err = openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	for i := 0; i < len(names) && err == nil; i++ {
		var next int
		next, made, err = stepReal(fd, names[i], i == len(names)-1, mode)
		closeFD(fd)
		fd = next
	}
	return fd, made, err
}

// stepReal opens one directory in another.
func stepReal(parent int, name string, last bool, mode fs.FileMode) (fd int, made bool, err error) {
	st, err := fstat(parent)
	if err != nil {
		return -1, false, err
	}
	open := openat
	// Whoever can write a directory can put a link there. In a sticky one such as /tmp too: nobody can replace what is
	// there, but anybody can be first.
	if last || st.Uid != 0 || st.Mode&0o022 != 0 {
		open = openComponent
	}
	fd, err = open(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) && mode != 0 {
		err = retryEINTR(func() error { return unix.Mkdirat(parent, name, uint32(mode.Perm())) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, false, fmt.Errorf("%q: %w", name, err)
		}
		made = err == nil
		fd, err = openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	return fd, made, err
}
