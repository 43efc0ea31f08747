package fsutil

import (
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
)

// ErrLocked is wrapped by [Dir.Lock] when somebody else holds the lock.
var ErrLocked = errors.New("somebody else holds the lock")

// ErrNotLocal is wrapped by [Dir.Lock] when a lock would not be known to everybody who can reach the directory.
var ErrNotLocal = errors.New("not a local file system")

// local are the file systems that only this kernel writes (statfs(2), f_type).
var local = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, zfsMagic,
}

const zfsMagic = 0x2fc12fc1

// Local reports whether a path is on a file system that only this kernel writes: there locks exclude everybody and inotify(7) sees
// every change. It follows links.
func Local(path string) bool {
	var st unix.Statfs_t
	err := retryEINTR(func() error { return unix.Statfs(path, &st) })
	return err == nil && slices.Contains(local, int64(st.Type)) //nolint:unconvert // its type is not the same on all machines
}

// Lock takes the exclusive lock (flock(2)) of the directory without waiting. The kernel releases it when the returned file is
// closed or the process ends. The lock is on the directory because users who can only write in it can't replace it. The error may
// wrap [ErrLocked] or [ErrNotLocal].
func (d *Dir) Lock() (held *os.File, err error) {
	err = d.do("lock", "", func([]string) error {
		fd, err := d.open(nil, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		if err := lock(fd, d.path); err != nil {
			closeFD(fd)
			return err
		}
		held = os.NewFile(uintptr(fd), d.path)
		return nil
	})
	return held, err
}

func lock(fd int, path string) error {
	var st unix.Statfs_t
	if err := retryEINTR(func() error { return unix.Fstatfs(fd, &st) }); err != nil {
		return err
	}
	if !slices.Contains(local, int64(st.Type)) { //nolint:unconvert // its type is not the same on all machines
		return ErrNotLocal
	}
	err := call(fault.Lock, path, func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrLocked
	case errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return errors.Join(ErrNotLocal, err)
	}
	return err
}

// Exclusive makes the regular file rel, and fails with fs.ErrExist if there is something of that name: of several callers, on any
// machines, one succeeds. A reader may find the file still empty.
func (d *Dir) Exclusive(rel string, data []byte, mode fs.FileMode) error {
	return d.do("create", rel, func(names []string) error {
		return d.inParent(names, func(parent int, base string) error {
			fd := -1
			err := call(fault.Open, base, func() (err error) {
				fd, err = openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_NOCTTY, uint32(mode.Perm()))
				return err
			})
			if err != nil {
				return err
			}
			defer closeFD(fd)
			return writeAll(fd, base, data)
		})
	})
}

// Overwrite writes data at the beginning of the existing regular file rel in one write(2). The rest of the file stays. A file that
// is long enough needs no disk space; a reader may see a mixture.
func (d *Dir) Overwrite(rel string, data []byte) error {
	return d.do("overwrite", rel, func(names []string) error {
		fd, _, err := d.openRegular(names, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return writeAll(fd, rel, data)
	})
}
