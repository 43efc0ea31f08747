package fsutil

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/fault"
)

// Errors that [Dir.Chown] and [Dir.OwnTree] refuse with.
var (
	// ErrDevice: whoever owns a device node can use the device, so it is not given away.
	ErrDevice = errors.New("device node refused")
	// ErrHardLink: root's file has other names, and one of them may be where root wants it to stay root's.
	ErrHardLink = errors.New("root's file with several names refused")
	// ErrMount: another file system is mounted there.
	ErrMount = errors.New("mount point")
)

// Owner is whom files are given to.
type Owner struct {
	UID, GID uint32
	// KeepLinked refuses root's regular files that have several names ([ErrHardLink]). It is needed where users may make
	// names for files they can't write, see [HardLinksProtected]: a user could have linked a file of root's, from a
	// directory that it can only read, into one whose files are given to it.
	KeepLinked bool
}

// HardLinksProtected reports whether the kernel keeps users from making further names for files that they neither own nor
// can write (protected_hardlinks of proc_sys_fs(5)). Where it can't be known the answer is no.
func HardLinksProtected() bool {
	data, err := os.ReadFile("/proc/sys/fs/protected_hardlinks")
	return err == nil && bytes.Equal(bytes.TrimSpace(data), []byte("1"))
}

// Chown gives what is at rel, "" being the directory itself, to another user unless it belongs to that user already; the
// group alone makes no difference. It returns whose it was and whether that has changed.
//
// A link at rel is [ErrSymlink], never its target's change of owner. Device nodes are [ErrDevice]; see [Owner] for files
// with several names. The kernel takes the set-user-ID and set-group-ID bits and the capabilities off a file that is given
// away, see chown(2).
func (d *Dir) Chown(rel string, to Owner) (was uint32, changed bool, err error) {
	err = d.do("chown", rel, func(names []string) error {
		if st, ok := d.glance(names); ok && st.Uid == to.UID && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			was = st.Uid
			return nil // the usual case, without opening it
		}
		fd, err := d.open(names, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		st, err := fstat(fd)
		if err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			return symlinkError(names[len(names)-1])
		}
		was = st.Uid
		changed, err = own(fd, st, to)
		return err
	})
	return was, changed, err
}

// glance describes what is one step away from d, or d itself. By the time of its answer another thing may be there.
func (d *Dir) glance(names []string) (st unix.Stat_t, ok bool) {
	var err error
	switch len(names) {
	case 0:
		st, err = fstat(d.fd)
	case 1:
		st, err = lstatat(d.fd, names[0])
	default:
		return st, false
	}
	return st, err == nil
}

// own gives away what fd is open on, which st describes: nothing is looked up by name any more.
func own(fd int, st unix.Stat_t, to Owner) (changed bool, err error) {
	if st.Uid == to.UID {
		return false, nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK, unix.S_IFCHR:
		return false, ErrDevice
	case unix.S_IFREG:
		if to.KeepLinked && st.Uid == 0 && st.Nlink > 1 {
			return false, ErrHardLink
		}
	}
	err = retryEINTR(func() error { return unix.Fchownat(fd, "", int(to.UID), int(to.GID), unix.AT_EMPTY_PATH) })
	return err == nil, err
}

// Chmod sets the permission bits of the regular file or directory rel and reports whether they were others. A link is
// [ErrSymlink], anything else [ErrNotRegular].
//
// Call it on a Dir whose actor is the file's owner: root would change whatever has been put there.
func (d *Dir) Chmod(rel string, mode fs.FileMode) (changed bool, err error) {
	err = d.do("chmod", rel, func(names []string) error {
		fd, err := d.open(names, unix.O_PATH, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		st, err := fstat(fd)
		if err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG, unix.S_IFDIR:
		case unix.S_IFLNK:
			return symlinkError(names[len(names)-1])
		default:
			return ErrNotRegular
		}
		if st.Mode&0o777 == uint32(mode.Perm()) {
			return nil
		}
		changed = true
		return chmod(fd, uint32(mode.Perm()))
	})
	return changed && err == nil, err
}

// chmod changes what an O_PATH descriptor is open on: by fchmodat2(2), or through /proc where the kernel (before 6.6) or a
// seccomp filter hasn't got it.
func chmod(fd int, mode uint32) error {
	err := retryEINTR(func() error { return unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = retryEINTR(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
	}
	return err
}

// Create makes the regular file rel with exactly these permission bits, with all of data or not at all, and never in the
// place of something: what is there already is fs.ErrExist, a link is [ErrSymlink]. The file is synced.
func (d *Dir) Create(rel string, data []byte, mode fs.FileMode) error {
	return d.do("create", rel, func(names []string) error {
		return d.inParent(names, func(parent int, base string) error {
			if st, err := lstatat(parent, base); err == nil {
				if st.Mode&unix.S_IFMT == unix.S_IFLNK {
					return symlinkError(base)
				}
				return fs.ErrExist
			}
			temp, err := writeTemp(parent, base, data, uint32(mode.Perm()), ReplaceOptions{})
			if err != nil {
				return err
			}
			if err := moveNew(parent, temp, base); err != nil {
				return errors.Join(err, removeName(parent, temp))
			}
			return nil
		})
	})
}

// moveNew gives a file its name unless that name is taken. Not every file system has each of the ways.
func moveNew(parent int, temp, base string) error {
	err := call(fault.Rename, temp, func() error { return unix.Renameat2(parent, temp, parent, base, unix.RENAME_NOREPLACE) })
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = retryEINTR(func() error { return unix.Linkat(parent, temp, parent, base, 0) })
	if err == nil {
		return removeName(parent, temp)
	}
	if errors.Is(err, unix.EEXIST) {
		return err
	}
	// Neither: FAT and its kind. The name was free a moment ago.
	if err := retryEINTR(func() error { return unix.Renameat(parent, temp, parent, base) }); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}
