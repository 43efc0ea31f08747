package fsutil

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenNoLink opens the directory at path, which must be absolute, for a caller that will change its owner or content. Unlike
// [OpenDir] it does not follow a link as the last component. In the rest of path, it only follows links in directories that only
// root can write to. A nil actor means [Self].
func OpenNoLink(path string, a *Actor) (*Dir, error) {
	d, _, err := openReal("open directory", path, 0, a)
	return d, err
}

// MakeReal works like [OpenNoLink], but creates missing directories with the permission bits mode (less the umask). made reports
// whether the last directory was created.
func MakeReal(path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	return openReal("make directory", path, mode.Perm()|makeMissing, a)
}

// makeMissing is a bit in rules.mode. If the bit is set, missing directories are created.
const makeMissing = fs.ModeDir

func openReal(verb, path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	a = cmp.Or(a, Self())
	d = newDir(path, a)
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		err = fmt.Errorf("not an absolute path: %w", fs.ErrInvalid)
	} else {
		err = a.Do(func() (err error) {
			d.fd, made, err = walkFrom(filepath.Clean(path), linkRules{mode: mode})
			return err
		})
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot %s %q: %w", verb, path, err)
	}
	return d, made, nil
}

// linkRules defines which links walkFrom follows, and whether it creates missing directories.
type linkRules struct {
	mode     fs.FileMode // permission bits of directories to create; without makeMissing, a missing directory is an error
	lastLink bool        // whether a link is also allowed as the last component
}

// OpenForRoot opens the directory at a path that an operator has typed, for a program that root may run. It returns an O_PATH
// descriptor, which the caller closes. A relative path begins at the working directory. When root runs the program, OpenForRoot
// only follows links that only root can have made, even as the last component. For any other link, the error is [ErrSymlink]. For
// other users it follows every link, like open(2).
func OpenForRoot(path string) (fd int, err error) {
	if unix.Geteuid() != 0 {
		return openat(unix.AT_FDCWD, path, unix.O_PATH|unix.O_DIRECTORY, 0)
	}
	fd, _, err = walkFrom(path, linkRules{lastLink: true})
	return fd, err
}

// maxLinks is the maximum number of links that a path may lead through, as in path_resolution(7).
const maxLinks = 40

// walkFrom opens the directory at path, one component after the other. r defines which links it follows. The same rules apply to
// the target of a link, because it may lead through another user's directory. made reports whether the last directory was
// created.
func walkFrom(path string, r linkRules) (fd int, made bool, err error) {
	if path == "" {
		return -1, false, unix.ENOENT
	}
	if fd, err = openStart(unix.AT_FDCWD, path); err != nil {
		return -1, false, err
	}
	names := splitPath(path)
	for links := 0; len(names) > 0; {
		var next int
		var target string
		next, target, made, err = r.step(fd, names[0], len(names) == 1)
		names = names[1:]
		if target != "" {
			if links++; links > maxLinks {
				err = unix.ELOOP
			} else {
				names = append(splitPath(target), names...)
				next, err = openStart(fd, target)
			}
		}
		closeFD(fd)
		if err != nil {
			return -1, false, err
		}
		fd = next
	}
	return fd, made, nil
}

// openStart opens the directory where a path begins: the root directory, or dirfd itself for a relative path.
func openStart(dirfd int, path string) (fd int, err error) {
	start := "."
	if filepath.IsAbs(path) {
		start = "/"
	}
	return openat(dirfd, start, unix.O_PATH|unix.O_DIRECTORY, 0)
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
}

// step opens the directory name in the directory parent. If name is a link that may be followed, step returns its target instead.
// The argument last reports whether name is the last component of the path.
func (r linkRules) step(parent int, name string, last bool) (fd int, target string, made bool, err error) {
	if name == ".." { // ".." means the parent directory, even after links
		fd, err = openat(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		return fd, "", false, err
	}
	fd, err = openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, ErrSymlink) && (!last || r.lastLink):
		// A user who can write to a directory can put a link there, even if the directory is sticky.
		if st, statErr := Fstat(parent); statErr != nil || st.Uid != 0 || st.Mode&0o022 != 0 {
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
