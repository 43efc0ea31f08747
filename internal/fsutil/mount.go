package fsutil

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// SubOnSameMount works like [Dir.Sub], but fails with [ErrMount] if rel is on another mount than d. It fails immediately, even if
// the server of that mount is gone.
func (d *Dir) SubOnSameMount(rel string) (*Dir, error) {
	return d.sub(rel, func(names []string) (int, error) { return d.openTree(names, unix.O_PATH|unix.O_DIRECTORY, false) })
}

func (d *Dir) openTree(names []string, flags int, crossTop bool) (int, error) {
	if crossTop || len(names) == 0 {
		return d.open(names, flags, 0)
	}
	return walkComponents(d.fd, names, flags, Mount{d.noOpenat2}.Open)
}

// Mount opens files for a walk over a directory tree that must stay on the mount where it begins.
type Mount struct{ noOpenat2 *atomic.Bool }

// Walk opens the directory rel for a walk over its files. It calls fn with a Mount, the descriptor fd of the directory, and its
// path for messages. fn runs with the actor's identity. Error messages use the argument what as the verb. If crossTop is set, rel
// itself may be a mount point; otherwise the error for a mount point is [ErrMount].
func (d *Dir) Walk(what, rel string, crossTop bool, fn func(m Mount, fd int, path string) error) error {
	return d.withComponents(what, rel, func(names []string) error {
		fd, err := d.openTree(names, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, crossTop)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return fn(Mount{d.noOpenat2}, fd, d.name(rel))
	})
}

// Open opens the file name in the open directory parent. For a mount point, it returns [ErrMount] without waiting for the mounted
// file system.
func (m Mount) Open(parent int, name string, flags int) (int, error) {
	if !m.noOpenat2.Load() {
		fd, err := openBeneath(parent, name, flags, 0, unix.RESOLVE_NO_XDEV)
		switch {
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
			m.noOpenat2.Store(true) // openat2 does not work here, so do not try it again
		case errors.Is(err, unix.EXDEV):
			return -1, ErrMount
		case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR) && isSymlink(parent, name):
			return -1, symlinkError(name)
		case errors.Is(err, unix.EAGAIN): // directories are being renamed; the method below always terminates
		default:
			return fd, err
		}
	}
	// Open with O_PATH first, which does not contact the mounted file system.
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

// sameMount reports whether the descriptors a and b are on the same mount. On kernels before 5.8 it can only compare the devices.
// It uses cached data, so it does not wait for a server.
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
