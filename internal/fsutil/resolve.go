package fsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// eagainTries limits the repeats of openat2, which fails with EAGAIN while directories on the path are being renamed.
const eagainTries = 32

// open opens the file with the path names beneath d, or d itself without names.
func (d *Dir) open(names []string, flags int, mode uint32) (int, error) {
	if len(names) == 0 {
		return openat(d.fd, ".", flags, mode)
	}
	if !d.walk.Load() {
		fd, err := openBeneath(d.fd, strings.Join(names, "/"), flags, mode, 0)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			// Either the kernel lacks openat2, or a seccomp filter refuses it. EPERM may also have another reason (an immutable
			// file). Then the walk below fails too.
			d.walk.Store(true)
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
			// The walk always terminates, and its error names the component that is a link.
		default:
			return fd, err
		}
	}
	return walkBeneath(d.fd, names, flags, mode)
}

// inParent opens the directory of the last component and calls fn with it. fn must not follow a link at base.
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

// openBeneath resolves a path in the kernel, see openat2(2). also adds further RESOLVE flags.
func openBeneath(dirfd int, name string, flags int, mode uint32, also uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | also,
	}
	if flags&unix.O_PATH == 0 {
		how.Flags |= unix.O_LARGEFILE // needed on 32-bit systems; openat2 refuses it together with O_PATH
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for try := 1; ; try++ {
		fd, err := unix.Openat2(dirfd, name, &how)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) && try < eagainTries {
			continue
		}
		return fd, err
	}
}

// walkBeneath resolves a path one component at a time, with O_NOFOLLOW for each. No component may be "..".
func walkBeneath(dirfd int, names []string, flags int, mode uint32) (int, error) {
	last := len(names) - 1
	cur := dirfd
	for _, name := range names[:last] {
		next, err := openComponent(cur, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if cur != dirfd {
			closeFD(cur)
		}
		if err != nil {
			return -1, err
		}
		cur = next
	}
	if cur != dirfd {
		defer closeFD(cur)
	}
	return openComponent(cur, names[last], flags, mode)
}

// openComponent opens one name in a directory. For a link the error is ErrSymlink.
func openComponent(dirfd int, name string, flags int, mode uint32) (int, error) {
	fd, err := openat(dirfd, name, flags|unix.O_NOFOLLOW, mode)
	switch {
	case errors.Is(err, unix.ELOOP):
		return -1, symlinkError(name)
	case errors.Is(err, unix.ENOTDIR) && isSymlink(dirfd, name):
		// O_DIRECTORY checks the type before O_NOFOLLOW does.
		return -1, symlinkError(name)
	case errors.Is(err, unix.ENOTDIR):
		return -1, fmt.Errorf("%q: %w", name, err)
	}
	return fd, err
}

func symlinkError(name string) error {
	return fmt.Errorf("%q: %w", name, ErrSymlink)
}

func isSymlink(dirfd int, name string) bool {
	st, err := LstatAt(dirfd, name)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
}

// LstatAt describes a name in a directory, without following a link.
func LstatAt(dirfd int, name string) (st unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstatat(dirfd, name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	return st, err
}

// Fstat describes an open file.
func Fstat(fd int) (st unix.Stat_t, err error) {
	err = retryEINTR(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

// openat is openat(2) with O_CLOEXEC. It follows a link at name unless flags has O_NOFOLLOW.
func openat(dirfd int, name string, flags int, mode uint32) (fd int, err error) {
	err = retryEINTR(func() (err error) {
		fd, err = unix.Openat(dirfd, name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// call is retryEINTR for a system call that tests can make fail.
func call(c faultinject.Call, name string, fn func() error) error {
	if err := faultinject.Before(c, name); err != nil {
		return err
	}
	err := retryEINTR(fn)
	if err == nil {
		faultinject.After(c, name)
	}
	return err
}

func retryEINTR(fn func() error) error {
	for {
		if err := fn(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// closeFD closes a descriptor. Its error can be ignored: written data is synced already, and after EINTR the descriptor is closed
// too, see close(2).
func closeFD(fd int) { _ = unix.Close(fd) }
