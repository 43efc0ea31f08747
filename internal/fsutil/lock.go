package fsutil

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// localFilesystems are the types of file systems that only this kernel writes to (statfs(2), f_type).
var localFilesystems = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, zfsMagic,
}

const zfsMagic = 0x2fc12fc1

// IsLocal reports whether path is on a file system that only this kernel writes to. Locks then exclude all other processes, and
// inotify(7) sees every change. IsLocal follows links.
func IsLocal(path string) bool {
	return isLocal(func(st *unix.Statfs_t) error { return unix.Statfs(path, st) })
}

// IsLocalFile is [IsLocal] for an open file.
func IsLocalFile(f *os.File) bool {
	return isLocal(func(st *unix.Statfs_t) error { return unix.Fstatfs(int(f.Fd()), st) })
}

// isLocal reports whether the system call stat returns the status of such a file system.
func isLocal(stat func(*unix.Statfs_t) error) bool {
	var st unix.Statfs_t
	return retryEINTR(func() error { return stat(&st) }) == nil && slices.Contains(localFilesystems, int64(st.Type)) //nolint:unconvert // the size of Type differs between machines
}

// Lock takes the exclusive lock (flock(2)) of the directory. If another process holds it, Lock calls busy with the open
// directory, and waits for the lock unless busy returns an error. The lock ends when the returned file is closed or the process
// ends. A user with write access could replace a file in the directory, so the lock is on the directory.
func (d *Dir) Lock(busy func(*os.File) error) (held *os.File, err error) {
	err = d.withComponents("lock", "", func([]string) error {
		fd, err := d.open(nil, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), d.path)
		err = flock(f, unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if err = busy(f); err == nil {
				err = flock(f, 0)
			}
		}
		if err != nil {
			_ = f.Close()
			return err
		}
		held = f
		return nil
	})
	return held, err
}

func flock(f *os.File, flags int) error {
	return callWithFault(faultinject.CallLock, f.Name(), func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|flags) })
}

// CreateExclusive creates the regular file rel with the content data. If rel exists, the error is fs.ErrExist. Of several
// callers at a time, even on different machines, exactly one succeeds. A reader may see the empty file. CreateExclusive blocks
// until the disk has stored the content; [Dir.SyncParentDir] waits for the name.
func (d *Dir) CreateExclusive(rel string, data []byte, mode fs.FileMode) error {
	return d.withParent("create", rel, func(parent int, base string) error {
		fd, err := createNew(parent, base, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return cmp.Or(writeAll(fd, base, data), fsync(fd, base))
	})
}
