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

// local are the file systems that only this kernel writes, so that a lock excludes everybody (statfs(2), f_type).
var local = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, zfsMagic,
}

const zfsMagic = 0x2fc12fc1

// Lock takes the exclusive lock (flock(2)) of the directory itself and does not wait for it. The lock is that of the file that
// it returns: the kernel lets go of it when that is closed or the process ends, however it ends. The directory is the lock
// because nobody who can only write in it can put another in its place. [ErrLocked] and [ErrNotLocal] say why there is none.
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

// Exclusive makes the regular file rel, and fails with fs.ErrExist where there is something of that name: of all who try at the
// same time, on whichever machines, one succeeds. Data follows in a second step, so that a reader may find the file empty.
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

// Overwrite puts data at the beginning of the regular file rel, which must exist, in one write(2). What follows in the file stays.
// It needs no room on the disk when the file is as long already; a reader may see a part of both.
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
