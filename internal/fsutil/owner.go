package fsutil

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// Errors with which [Dir.Chown] and package owntree refuse to change a file.
var (
	// ErrDevice refuses a device node, because its owner could use the device.
	ErrDevice = errors.New("device node refused")
	// ErrHardLink refuses a file with several names (hard links), because root may need to keep it under its other names.
	ErrHardLink = errors.New("a file with names elsewhere is refused")
	// ErrKept refuses a file of a user whose files are not given away, see [Owner].Keep.
	ErrKept = errors.New("a file of a user who keeps it is refused")
	// ErrMount means that another file system is mounted at the file's name.
	ErrMount = errors.New("mount point")
)

// Owner is the user that gets the files. It also defines how files with several names (hard links) are handled, and which files
// other users keep.
type Owner struct {
	UID, GID uint32
	// KeepLinked refuses root's regular files with several names, with [ErrHardLink]. Unless [HardLinksProtected] is true, a user
	// could link one of root's files into a directory whose files are then given to this user.
	KeepLinked bool
	// Keep reports whether the user uid keeps its files, which are then refused with [ErrKept]. If Keep is nil, no user
	// keeps its files. A decision by a file's name would not be enough, because the agent can also rename directories of
	// other users.
	Keep func(uid uint32) bool
	// HomeMark is the name of a file that each home of a user has, or "". If a directory has such a file, and both belong to the same
	// user, who is not root, the directory is a home. Its owner keeps it with everything in it, wherever the agent has moved it.
	HomeMark string

	allowed uint32 // see AllowingUID
}

// Keeps reports whether a file of the user uid must not be given to o, see [ErrKept].
func (o Owner) Keeps(uid uint32) bool {
	return uid != o.UID && uid != o.allowed && o.Keep != nil && o.Keep(uid)
}

// KeepsOpen is like Keeps, for the open file fd with the status st. The file may be a home, see o.HomeMark.
func (o Owner) KeepsOpen(fd int, st unix.Stat_t) bool {
	if o.HomeMark == "" || st.Uid == 0 || st.Uid == o.UID || st.Uid == o.allowed || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return o.Keeps(st.Uid)
	}
	mark, err := LstatAt(fd, o.HomeMark)
	return o.Keeps(st.Uid) || err == nil && mark.Uid == st.Uid
}

// AllowingUID returns o with one exception: files of the user uid are given to o.
func (o Owner) AllowingUID(uid uint32) Owner {
	o.allowed = uid
	return o
}

// HardLinksProtected reports whether the kernel keeps users from linking files that they neither own nor can write
// (protected_hardlinks of proc_sys_fs(5)). It returns false if that is unknown.
func HardLinksProtected() bool {
	data, err := os.ReadFile("/proc/sys/fs/protected_hardlinks")
	return err == nil && bytes.Equal(bytes.TrimSpace(data), []byte("1"))
}

// Chown changes the owner of rel to the user in the argument to. If rel is "", it changes the directory itself. A file that
// already belongs to this user keeps its group. Chown returns the old owner, and reports whether the owner has changed.
//
// For a link the error is [ErrSymlink], and for a device node [ErrDevice]. See [Owner] for files with several names, and for
// files that their owners keep. A regular file loses its set-user-ID bit, set-group-ID bit and capabilities.
func (d *Dir) Chown(rel string, to Owner) (was uint32, changed bool, err error) {
	err = d.withComponents("chown", rel, func(names []string) error {
		if st, ok := d.lstatNear(names); ok && st.Uid == to.UID && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			was = st.Uid
			return nil // usually the owner is already right, so don't open the file
		}
		fd, st, err := d.openAnyType(names)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		was = st.Uid
		changed, err = ChangeOwner(fd, st, to, false)
		return err
	})
	return was, changed, err
}

// openAnyType opens the file whose path has the components names, whatever the file's type, and returns its status. For a link it
// returns an error.
func (d *Dir) openAnyType(names []string) (fd int, st unix.Stat_t, err error) {
	if fd, err = d.open(names, unix.O_PATH, 0); err != nil {
		return -1, st, err
	}
	if st, err = Fstat(fd); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = symlinkError(names[len(names)-1])
	}
	if err != nil {
		closeFD(fd)
	}
	return fd, st, err
}

// lstatNear returns the status of a file directly in d, or of d itself, without opening it. ok is false if the path has several
// components. The file may be replaced right afterwards.
func (d *Dir) lstatNear(names []string) (st unix.Stat_t, ok bool) {
	var err error
	switch len(names) {
	case 0:
		st, err = Fstat(d.fd)
	case 1:
		st, err = LstatAt(d.fd, names[0])
	default:
		return st, false
	}
	return st, err == nil
}

// ChangeOwner changes the owner of the open file fd, whose status is st. It doesn't use the file's name. If dry is true, it only
// reports whether it would change the owner.
func ChangeOwner(fd int, st unix.Stat_t, to Owner, dry bool) (changed bool, err error) {
	if st.Uid == to.UID {
		return false, nil
	}
	if to.KeepsOpen(fd, st) {
		return false, ErrKept
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK, unix.S_IFCHR:
		return false, ErrDevice
	case unix.S_IFREG:
		if to.KeepLinked && st.Uid == 0 && st.Nlink > 1 {
			return false, ErrHardLink
		}
	}
	if dry {
		return true, nil
	}
	if err = retryEINTR(func() error { return unix.Fchownat(fd, "", int(to.UID), int(to.GID), unix.AT_EMPTY_PATH) }); err != nil {
		return false, err
	}
	// The kernel always drops capabilities, but clears these bits only for some files and file systems.
	const special = unix.S_ISUID | unix.S_ISGID
	if st.Mode&special == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return true, nil
	}
	return true, ChmodFD(fd, st.Mode&0o7777&^special)
}

// Chmod sets the permission bits of the regular file or directory rel and reports whether they changed. For a link the error is
// [ErrSymlink], for anything else [ErrNotRegular].
//
// Call it on a Dir whose actor owns the file: root would change any file that another user has put in its place.
func (d *Dir) Chmod(rel string, mode fs.FileMode) (changed bool, err error) {
	err = d.withComponents("chmod", rel, func(names []string) error {
		fd, st, err := d.openAnyType(names)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return ErrNotRegular
		}
		if changed = st.Mode&0o777 != uint32(mode.Perm()); !changed {
			return nil
		}
		return ChmodFD(fd, uint32(mode.Perm()))
	})
	return changed && err == nil, err
}

// ChmodFD changes the mode of the file behind an O_PATH descriptor. It uses fchmodat2(2). If the kernel (before 6.6) or a seccomp
// filter does not allow that, it uses /proc.
func ChmodFD(fd int, mode uint32) error {
	err := retryEINTR(func() error { return unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = retryEINTR(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
	}
	return err
}

// Create creates the regular file rel with data as its content and exactly the permission bits mode. After an error, the file is
// not created. Existing files are not replaced: for an existing file the error is fs.ErrExist, for a link [ErrSymlink]. The
// content is synced.
func (d *Dir) Create(rel string, data []byte, mode fs.FileMode) error {
	return d.at("create", rel, func(parent int, base string) error {
		if st, err := LstatAt(parent, base); err == nil {
			if st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return symlinkError(base)
			}
			return fs.ErrExist
		}
		temp, err := writeTemp(parent, base, data, uint32(mode.Perm()), ReplaceOptions{})
		if err == nil {
			if err = RenameNew(parent, temp, base); err != nil {
				err = errors.Join(err, removeName(parent, temp))
			}
		}
		return err
	})
}

// RenameNew renames a file. The argument from is the old path, and to is the new path. If the new path exists, the error is
// EEXIST. Both paths are relative to the directory dir, which may be AT_FDCWD. RenameNew tries several methods, because file
// systems support different ones.
func RenameNew(dir int, from, to string) error {
	err := callWithFault(faultinject.Rename, from, func() error { return unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE) })
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return err
	}
	err = retryEINTR(func() error { return unix.Linkat(dir, from, dir, to, 0) })
	if err == nil {
		return removeName(dir, from)
	}
	if errors.Is(err, unix.EEXIST) {
		return err
	}
	// Both methods fail on FAT and similar file systems. There, use an ordinary rename: the name was free just before.
	if err := retryEINTR(func() error { return unix.Renameat(dir, from, dir, to) }); err != nil {
		return fmt.Errorf("rename: %w", err)
	}
	return nil
}

// SetAccessTime sets the access time of a file or directory, and no other time. It doesn't follow a symbolic link. Unless the caller
// is root, the file must be the caller's own (utimensat(2)).
func (d *Dir) SetAccessTime(rel string, to time.Time) error {
	return d.at("set the access time of", rel, func(parent int, base string) error {
		times := []unix.Timespec{unix.NsecToTimespec(to.UnixNano()), {Nsec: unix.UTIME_OMIT}}
		return unix.UtimesNanoAt(parent, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}
