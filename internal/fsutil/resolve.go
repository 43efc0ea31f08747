package fsutil

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/trust"
)

// maxEagainRetries is how often openat2 is called while it fails with EAGAIN, because directories of the path are being renamed.
const maxEagainRetries = 32

// open opens the file with the path names, relative to d, or d itself if names is empty.
func (d *Dir) open(names []string, flags int, mode uint32) (int, error) {
	if len(names) == 0 {
		return openat(d.fd, ".", flags, mode)
	}
	if !d.noOpenat2.Load() {
		fd, err := openBeneath(d.fd, strings.Join(names, "/"), flags, mode, 0)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			// The kernel lacks openat2, or a seccomp filter refuses it. EPERM may have another reason, such as an immutable file;
			// then walkBeneath fails, too.
			d.noOpenat2.Store(true)
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			// walkBeneath always comes to an end, and its error names the component that is a link.
		default:
			return fd, err
		}
	}
	return walkBeneath(d.fd, names, flags, mode)
}

// inParent opens the directory of the last component of names, and calls fn with the directory (parent) and the component (base).
// fn must not follow a link at base.
func (d *Dir) inParent(names []string, fn func(parent int, base string) error) error {
	if len(names) == 0 {
		return fmt.Errorf("the directory itself is no name in it: %w", fs.ErrInvalid)
	}
	last := len(names) - 1
	if last == 0 {
		return fn(d.fd, names[0])
	}
	parent, err := d.open(names[:last], unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(parent)
	return fn(parent, names[last])
}

// openBeneath opens name relative to dirfd by openat2(2). The kernel then refuses links, and paths that lead out of dirfd.
// also has further RESOLVE flags.
func openBeneath(dirfd int, name string, flags int, mode uint32, also uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | also,
	}
	if flags&unix.O_PATH == 0 {
		how.Flags |= unix.O_LARGEFILE // needed on 32-bit systems; refused together with O_PATH
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dirfd, name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) && try < maxEagainRetries {
			continue
		}
		return fd, err
	}
}

// walkBeneath opens the file with the path names below dirfd, one component after the other, each with O_NOFOLLOW. No name
// may be "..".
func walkBeneath(dirfd int, names []string, flags int, mode uint32) (int, error) {
	return walkComponents(dirfd, names, flags, func(parent int, name string, flags int) (int, error) {
		return openComponent(parent, name, flags, mode)
	})
}

// walkComponents calls open for each component of a path below dirfd, and holds one directory open at a time. flags are for the
// last component.
func walkComponents(dirfd int, names []string, flags int, open func(parent int, name string, flags int) (int, error)) (int, error) {
	cur := dirfd
	for i, name := range names {
		f := flags
		if i < len(names)-1 {
			f = unix.O_PATH | unix.O_DIRECTORY
		}
		next, err := open(cur, name, f)
		if cur != dirfd {
			closeFD(cur)
		}
		if err != nil {
			return -1, err
		}
		cur = next
	}
	return cur, nil
}

// openComponent opens the file name in dirfd. A link is ErrSymlink; with O_PATH and without O_DIRECTORY, the link itself is opened.
func openComponent(dirfd int, name string, flags int, mode uint32) (int, error) {
	fd, err := openat(dirfd, name, flags|unix.O_NOFOLLOW, mode)
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, symlinkError(name)
	case errors.Is(err, unix.ENOTDIR) && isSymlink(dirfd, name):
		// for a link, O_DIRECTORY fails with ENOTDIR before O_NOFOLLOW fails with ELOOP
		return -1, symlinkError(name)
	case errors.Is(err, unix.ENOTDIR):
		return -1, fmt.Errorf("%q: %w", name, err)
	}
	return fd, err
}

func symlinkError(name string) error { return fmt.Errorf("%q: %w", name, ErrSymlink) }

func isSymlink(dirfd int, name string) bool {
	st, err := LstatAt(dirfd, name)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// LstatAt returns the status of the file name in dirfd. It doesn't follow a link.
func LstatAt(dirfd int, name string) (st unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

// Fstat returns the status of an open file.
func Fstat(fd int) (st unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

// openat calls openat(2) with O_CLOEXEC, again after EINTR. Without O_NOFOLLOW in flags it follows a link at name.
func openat(dirfd int, name string, flags int, mode uint32) (fd int, err error) {
	return trust.Retry(func() (int, error) { return unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, mode) })
}

// callWithFault is retryEINTR for a call that tests can make fail through package faultinject, where c and name identify it.
func callWithFault(c faultinject.Call, name string, fn func() error) error {
	err := faultinject.RunCall(c, name, func() error { return retryEINTR(fn) })
	if err == nil {
		faultinject.AfterCall(c, name)
	}
	return err
}

// countWithFault is callWithFault for a call that returns a number.
func countWithFault(c faultinject.Call, name string, fn func() (int, error)) (n int, err error) {
	err = callWithFault(c, name, func() (err error) {
		n, err = fn()
		return err
	})
	return n, err
}

func retryEINTR(fn func() error) error {
	_, err := trust.Retry(func() (int, error) { return 0, fn() })
	return err
}

// closeFD closes a descriptor. An error is ignored: written data has been synced, and close(2) releases the descriptor even after
// EINTR.
func closeFD(fd int) { _ = unix.Close(fd) }

// OpenSubdirSameMount is [Dir.OpenSubdir], but returns [ErrMount] if rel is on another mount than d. It doesn't wait for the
// server of that mount.
func (d *Dir) OpenSubdirSameMount(rel string) (*Dir, error) {
	return d.openSubdir(rel, func(names []string) (int, error) { return d.openTree(names, unix.O_PATH|unix.O_DIRECTORY, false) })
}

func (d *Dir) openTree(names []string, flags int, crossTop bool) (int, error) {
	if crossTop || len(names) == 0 {
		return d.open(names, flags, 0)
	}
	return walkComponents(d.fd, names, flags, SameMountOpener{d.noOpenat2}.Open)
}

// SameMountOpener opens files for a walk that must stay on the mount where it begins.
type SameMountOpener struct{ noOpenat2 *atomic.Bool }

// Walk opens the directory rel for a walk over its files. It calls fn, with the identity of the actor. fn gets the descriptor of
// the directory, and its path for messages. The argument what is the verb in errors. With crossTop, rel may be a mount point;
// otherwise a mount point is the error [ErrMount].
func (d *Dir) Walk(what, rel string, crossTop bool, fn func(m SameMountOpener, fd int, path string) error) error {
	return d.withComponents(what, rel, func(names []string) error {
		fd, err := d.openTree(names, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, crossTop)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return fn(SameMountOpener{d.noOpenat2}, fd, d.displayPath(rel))
	})
}

// Open opens the file name in the directory parent. For a mount point it returns [ErrMount], without a wait for the mounted file
// system.
func (m SameMountOpener) Open(parent int, name string, flags int) (int, error) {
	if !m.noOpenat2.Load() {
		fd, err := openBeneath(parent, name, flags, 0, unix.RESOLVE_NO_XDEV)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			m.noOpenat2.Store(true) // the kernel or a seccomp filter refuses openat2, so don't try again
		case errors.Is(err, unix.EXDEV):
			return -1, ErrMount
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR) && isSymlink(parent, name):
			return -1, symlinkError(name)
		case errors.Is(err, unix.EAGAIN): // directories are being renamed, and openat2 could fail again and again; the method below always ends
		default:
			return fd, err
		}
	}
	// First open with O_PATH, which doesn't contact the mounted file system.
	fd, err := openComponent(parent, name, unix.O_PATH|flags&unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	same, err := sameMount(parent, fd)
	if err == nil && !same {
		err = ErrMount
	}
	if err != nil {
		closeFD(fd)
		return -1, err
	}
	if flags&unix.O_PATH != 0 {
		return fd, nil
	}
	defer closeFD(fd)
	return openat(fd, ".", flags, 0)
}

// sameMount reports whether two descriptors are on the same mount. Before Linux 5.8 it can only compare devices. It uses cached
// data, so it doesn't wait for a server.
func sameMount(a, b int) (bool, error) {
	var sa, sb unix.Statx_t
	const flags = unix.AT_EMPTY_PATH | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	err := retryEINTR(func() error { return unix.Statx(a, "", flags, unix.STATX_MNT_ID, &sa) })
	if err == nil {
		err = retryEINTR(func() error { return unix.Statx(b, "", flags, unix.STATX_MNT_ID, &sb) })
	}
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		ta, errA := Fstat(a)
		tb, errB := Fstat(b)
		return ta.Dev == tb.Dev, errors.Join(errA, errB)
	}
	if err != nil {
		return false, err
	}
	if sa.Dev_major != sb.Dev_major || sa.Dev_minor != sb.Dev_minor {
		return false, nil
	}
	known := sa.Mask&sb.Mask&unix.STATX_MNT_ID != 0
	return !known || sa.Mnt_id == sb.Mnt_id, nil
}

// OpenNoLink opens the directory at the absolute path, for a caller that changes its owner or content. It doesn't follow a link
// as the last component. It follows other links of the path only in directories that only root can write to. A nil actor means
// [ProcessActor].
func OpenNoLink(path string, a *Actor) (*Dir, error) {
	d, _, err := openWithoutLinks("open directory", path, 0, a)
	return d, err
}

// WithParentDir opens the directory of path as [OpenNoLink] does, and calls do with it and the last element of path.
func WithParentDir[T any](path string, a *Actor, do func(d *Dir, name string) (T, error)) (result T, err error) {
	d, err := OpenNoLink(filepath.Dir(path), a)
	if err != nil {
		return result, err
	}
	defer d.Close()
	return do(d, filepath.Base(path))
}

// MakeNoLink opens a path like [OpenNoLink], and creates missing directories with the permission bits mode (less the umask).
// made says whether it has created the last directory of the path.
func MakeNoLink(path string, mode fs.FileMode, a *Actor) (d *Dir, made bool, err error) {
	return openWithoutLinks("make directory", path, uint32(mode.Perm()), a)
}

func openWithoutLinks(verb, path string, mode uint32, a *Actor) (d *Dir, made bool, err error) {
	a = cmp.Or(a, ProcessActor())
	d = newDir(path, a)
	if !filepath.IsAbs(path) || strings.IndexByte(path, 0) >= 0 {
		err = fmt.Errorf("not an absolute path: %w", fs.ErrInvalid)
	} else {
		err = a.Do(func() (err error) {
			d.fd, made, err = trust.OpenDir(filepath.Clean(path), false, mode)
			return err
		})
	}
	if err != nil {
		return nil, false, fmt.Errorf("cannot %s %q: %w", verb, path, err)
	}
	return d, made, nil
}
