package fsutil

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// Reasons for which [Dir.Chown] and package owntree refuse to give a file away.
var (
	// ErrDevice refuses a device node, which would give its owner the device.
	ErrDevice = errors.New("device node refused")
	// ErrHardLink refuses a file with several hard links, which root may need under another name.
	ErrHardLink = errors.New("a file with names elsewhere is refused")
	// ErrProtected means that a file must stay with its owner, see [Owner].Excludes and [Owner].HomeMarkerFile.
	ErrProtected = errors.New("a file of a user who keeps it is refused")
	// ErrMount means that another file system is mounted at a name.
	ErrMount = errors.New("mount point")
)

// Owner is the user to whom files are given, with rules about files that must keep their owner.
type Owner struct {
	UID, GID uint32
	// RefuseHardLinked refuses root's regular files with several hard links. Unless [HardLinksProtected] is true, a user can link
	// root's file into a directory whose files the user is then given.
	RefuseHardLinked bool
	// Excludes reports whether the user uid keeps its files; nil means that no user does. The rule can't use file names,
	// because the agent can also rename directories of other users.
	Excludes func(uid uint32) bool
	// HomeMarkerFile is the name of a file in each home of a user, or "". A directory with such a file is a home if both belong
	// to the same user, who is not root. The owner keeps the directory and its content, wherever the agent has moved it.
	HomeMarkerFile string

	allowedUID uint32 // uid whose files may be given away, see WithAllowedUID
}

// ProtectsFilesOf reports whether a file of the user uid must not be given to o ([ErrProtected]).
func (o Owner) ProtectsFilesOf(uid uint32) bool {
	return uid != o.UID && uid != o.allowedUID && o.Excludes != nil && o.Excludes(uid)
}

// ProtectsFile is ProtectsFilesOf for the open file fd with the status st, which may be a home (see HomeMarkerFile).
func (o Owner) ProtectsFile(fd int, st unix.Stat_t) bool {
	if o.HomeMarkerFile == "" || st.Uid == 0 || st.Uid == o.UID || st.Uid == o.allowedUID || st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return o.ProtectsFilesOf(st.Uid)
	}
	mark, err := LstatAt(fd, o.HomeMarkerFile)
	return o.ProtectsFilesOf(st.Uid) || err == nil && mark.Uid == st.Uid
}

// WithAllowedUID returns a copy of o that also receives files of the user uid.
func (o Owner) WithAllowedUID(uid uint32) Owner {
	o.allowedUID = uid
	return o
}

// HardLinksProtected reports whether the kernel keeps users from linking files that they neither own nor can write
// (protected_hardlinks of proc_sys_fs(5)). If that is unknown, it returns false.
func HardLinksProtected() bool {
	data, err := os.ReadFile("/proc/sys/fs/protected_hardlinks")
	return err == nil && bytes.Equal(bytes.TrimSpace(data), []byte("1"))
}

// Chown gives rel to the user to; "" is the directory itself. If this user already owns the file, the file also keeps its
// group. Chown returns the old owner, and whether the owner has changed.
//
// A link is [ErrSymlink], and a device node [ErrDevice]. See [Owner] for other files that are refused. A regular file loses
// its set-user-ID and set-group-ID bits and its capabilities.
func (d *Dir) Chown(rel string, to Owner) (was uint32, changed bool, err error) {
	err = d.withComponents("chown", rel, func(names []string) error {
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

// openAnyType opens the file with the path names, of any type, and returns its status. A link is an error.
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

// ChangeOwner gives the open file fd, whose status is st, to the user to, without using the file's name. If dry is set, it
// changes nothing, and reports whether it would change the owner.
func ChangeOwner(fd int, st unix.Stat_t, to Owner, dry bool) (changed bool, err error) {
	if st.Uid == to.UID {
		return false, nil
	}
	if to.ProtectsFile(fd, st) {
		return false, ErrProtected
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK, unix.S_IFCHR:
		return false, ErrDevice
	case unix.S_IFREG:
		if to.RefuseHardLinked && st.Uid == 0 && st.Nlink > 1 {
			return false, ErrHardLink
		}
	}
	if dry {
		return true, nil
	}
	if err = retryEINTR(func() error { return unix.Fchownat(fd, "", int(to.UID), int(to.GID), unix.AT_EMPTY_PATH) }); err != nil {
		return false, err
	}
	// the kernel always drops capabilities, but clears these bits only for some files and file systems
	const special = unix.S_ISUID | unix.S_ISGID
	if st.Mode&special == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return true, nil
	}
	return true, ChmodFD(fd, st.Mode&0o7777&^special)
}

// Chmod sets the permission bits of the regular file or directory rel. A link is [ErrSymlink], anything else
// [ErrNotRegular].
//
// The actor must be the owner of the file, because root would change whatever file another user has put in its place.
func (d *Dir) Chmod(rel string, mode fs.FileMode) error {
	return d.withComponents("chmod", rel, func(names []string) error {
		fd, st, err := d.openAnyType(names)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		if kind := st.Mode & unix.S_IFMT; kind != unix.S_IFREG && kind != unix.S_IFDIR {
			return ErrNotRegular
		}
		if st.Mode&0o777 == uint32(mode.Perm()) {
			return nil
		}
		return ChmodFD(fd, uint32(mode.Perm()))
	})
}

// ChmodFD changes the mode of the file behind an O_PATH descriptor by fchmodat2(2). If the kernel (before 6.6) or a seccomp filter
// doesn't allow the call, ChmodFD goes through /proc.
func ChmodFD(fd int, mode uint32) error {
	err := retryEINTR(func() error { return unix.Fchmodat(fd, "", mode, unix.AT_EMPTY_PATH) })
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = retryEINTR(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
	}
	return err
}

// Create creates the regular file rel with the content data and exactly the permission bits mode, and syncs the content. After an
// error there is no file. An existing file is fs.ErrExist, and a link [ErrSymlink].
func (d *Dir) Create(rel string, data []byte, mode fs.FileMode) error {
	return d.withParent("create", rel, func(parent int, base string) error {
		if st, err := LstatAt(parent, base); err == nil {
			if st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return symlinkError(base)
			}
			return fs.ErrExist
		}
		temp, err := writeTemp(parent, base, data, uint32(mode.Perm()), false)
		if err == nil {
			if err = RenameNoReplace(parent, temp, base); err != nil {
				err = errors.Join(err, removeName(parent, temp))
			}
		}
		return err
	})
}

// RenameNoReplace renames a file, and returns EEXIST if the new name exists. Both paths are relative to the directory dir, which
// may be AT_FDCWD. It tries several ways, because file systems support different ones.
func RenameNoReplace(dir int, from, to string) error {
	err := callWithFault(faultinject.CallRename, from, func() error { return unix.Renameat2(dir, from, dir, to, unix.RENAME_NOREPLACE) })
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
	// FAT and similar file systems support neither way. An ordinary rename must do, because the name was free just before.
	return retryEINTR(func() error { return unix.Renameat(dir, from, dir, to) })
}

// SetAccessTime sets the access time of a file or directory, and no other time. It doesn't follow a link. A caller other than root
// must be the file's owner (utimensat(2)).
func (d *Dir) SetAccessTime(rel string, to time.Time) error {
	return d.withParent("set the access time of", rel, func(parent int, base string) error {
		times := []unix.Timespec{unix.NsecToTimespec(to.UnixNano()), {Nsec: unix.UTIME_OMIT}}
		return unix.UtimesNanoAt(parent, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}
