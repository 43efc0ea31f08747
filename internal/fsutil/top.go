package fsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenReal opens the directory at path, which must be absolute, for a caller that will change its owner or content. Unlike
// [OpenDir] it follows no link in the last place, and elsewhere only links in directories that only root can write. A nil actor is
// [Self].
func OpenReal(path string, a *Actor) (*Dir, error) {
	d, _, err := openReal("open directory", path, 0, a)
	return d, err
}

// MakeReal is [OpenReal] that makes missing directories with the given permission bits (less the umask). made reports whether the
// last one was missing.
func MakeReal(path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	return openReal("make directory", path, mode.Perm()|makeMissing, a)
}

// makeMissing marks a mode for making directories, even one without permissions.
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

// rules say which links a walk follows and what it makes.
type rules struct {
	mode     fs.FileMode // of directories that are missing; without makeMissing they are an error
	lastLink bool        // a link in the last place counts like any other
}

// OpenForRoot opens the directory at a path that somebody has typed, for a program that root runs. It returns an O_PATH descriptor,
// which the caller closes. Root follows only links that only root can have made, in the last place too; another link is
// [ErrSymlink]. A relative path begins at the working directory. Other users follow every link, as with open(2).
func OpenForRoot(path string) (fd int, err error) {
	if unix.Geteuid() != 0 {
		return openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	fd, _, err = walkFrom(path, rules{lastLink: true})
	return fd, err
}

func walkReal(path string, mode fs.FileMode) (fd int, made bool, err error) {
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		return -1, false, fmt.Errorf("not an absolute path: %w", fs.ErrInvalid)
	}
	path = filepath.Clean(path)
	if _, err := components(strings.TrimLeft(path, "/")); err != nil {
		return -1, false, err
	}
	return walkFrom(path, rules{mode: mode})
}

// maxLinks is the most links on a path, as in path_resolution(7).
const maxLinks = 40

// walkFrom opens one directory after the other. The target of a link is walked by the same rules: it may lead through somebody
// else's directory.
func walkFrom(path string, r rules) (fd int, made bool, err error) {
	begin := func(path string) (int, error) {
		if filepath.IsAbs(path) {
			return openat(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		return openat(unix.AT_FDCWD, ".", unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	if path == "" {
		return -1, false, unix.ENOENT
	}
	if fd, err = begin(path); err != nil {
		return -1, false, err
	}
	names := words(path)
	for links := 0; len(names) > 0; {
		var next int
		var target string
		next, target, made, err = r.step(fd, names[0], len(names) == 1)
		switch {
		case err != nil:
		case target == "":
			names = names[1:]
		case links >= maxLinks:
			err = unix.ELOOP
		case filepath.IsAbs(target):
			links++
			names = append(words(target), names[1:]...)
			next, err = begin(target)
		default:
			links++
			names = append(words(target), names[1:]...)
			continue // in the directory that the link is in
		}
		closeFD(fd)
		if err != nil {
			return -1, false, err
		}
		fd = next
	}
	return fd, made, nil
}

func words(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// step opens one directory in another, or returns the target of a link that may be followed.
func (r rules) step(parent int, name string, last bool) (fd int, target string, made bool, err error) {
	if name == ".." { // the directory above, whatever names led here
		fd, err = openat(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		return fd, "", false, err
	}
	fd, err = openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, ErrSymlink) && (!last || r.lastLink):
		// A user that can write a directory can put a link there, in a sticky one too.
		if st, statErr := fstat(parent); statErr != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
			return -1, "", false, errors.Join(err, statErr)
		}
		target, err = readlinkat(parent, name)
		return -1, target, false, err
	case errors.Is(err, unix.ENOENT) && r.mode != 0:
		err = retryEINTR(func() error { return unix.Mkdirat(parent, name, uint32(r.mode.Perm())) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, "", false, fmt.Errorf("%q: %w", name, err)
		}
		made = err == nil
		fd, err = openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	return fd, "", made, err
}

func readlinkat(parent int, name string) (target string, err error) {
	buf := make([]byte, unix.PathMax)
	n := 0
	err = retryEINTR(func() (err error) {
		n, err = unix.Readlinkat(parent, name, buf)
		return err
	})
	if err == nil && n == 0 {
		err = unix.ENOENT
	}
	if err != nil {
		return "", fmt.Errorf("%q: %w", name, err)
	}
	return string(buf[:n]), nil
}
