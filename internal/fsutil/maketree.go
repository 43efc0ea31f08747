package fsutil

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Node is one thing in a tree that [Dir.MakeTree] makes: a directory, a FIFO or, without either type bit, a regular file.
type Node struct {
	Name string      // relative to the top of the tree; its directory comes before it
	Mode fs.FileMode // type, permission bits and set-group-ID and sticky bits, exactly: the umask plays no part
	Data []byte      // of a file
}

// MakeTree makes the directory rel with everything in it, or nothing: it has another name, which begins with a dot, until
// it is complete. What is at rel already is fs.ErrExist. Everything belongs to the actor. Nothing is synced: it is for what
// a crash of the machine takes away anyway.
func (d *Dir) MakeTree(rel string, mode fs.FileMode, nodes []Node) error {
	return d.do("make", rel, func(names []string) error {
		return d.inParent(names, func(parent int, base string) error {
			if _, err := lstatat(parent, base); err == nil {
				return fs.ErrExist
			}
			temp := "." + base + "." + strconv.FormatUint(rand.Uint64(), 36) + ".new"
			err := growTree(parent, temp, mode, nodes)
			if err == nil {
				err = moveTree(parent, temp, base)
			}
			if err != nil {
				return errors.Join(err, ignoreMissing(removeTree(parent, temp)))
			}
			return nil
		})
	})
}

func growTree(parent int, top string, mode fs.FileMode, nodes []Node) error {
	if err := grow(parent, top, Node{Mode: fs.ModeDir | mode}); err != nil {
		return err
	}
	fd, err := openComponent(parent, top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	for _, n := range nodes {
		if err := growBeneath(fd, n); err != nil {
			return fmt.Errorf("%q: %w", n.Name, err)
		}
	}
	return nil
}

func growBeneath(top int, n Node) error {
	dir, base := path.Split(n.Name)
	names, err := components(dir)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return grow(top, base, n)
	}
	parent, err := walkBeneath(top, names, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(parent)
	return grow(parent, base, n)
}

// grow makes one thing. Its mode is set through a descriptor: a path below /proc is not open to every identity.
func grow(parent int, base string, n Node) error {
	var err error
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	switch n.Mode.Type() {
	case fs.ModeDir:
		flags = unix.O_RDONLY | unix.O_DIRECTORY
		err = retryEINTR(func() error { return unix.Mkdirat(parent, base, 0o700) })
	case fs.ModeNamedPipe:
		flags = unix.O_RDWR | unix.O_NONBLOCK
		err = retryEINTR(func() error { return unix.Mknodat(parent, base, unix.S_IFIFO|0o600, 0) })
	case 0:
	default:
		err = fmt.Errorf("cannot make a file of type %v: %w", n.Mode.Type(), fs.ErrInvalid)
	}
	if err != nil {
		return err
	}
	fd, err := openat(parent, base, flags|unix.O_NOFOLLOW|unix.O_NOCTTY, 0o600)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := writeAll(fd, base, n.Data); err != nil {
		return err
	}
	return retryEINTR(func() error { return unix.Fchmod(fd, bits(n.Mode)) })
}

// bits are the permission bits and the special ones that a directory may have.
func bits(mode fs.FileMode) uint32 {
	b := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 {
		b |= unix.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		b |= unix.S_ISVTX
	}
	return b
}

// moveTree gives a directory its name unless that name is taken.
func moveTree(parent int, temp, base string) error {
	err := retryEINTR(func() error { return unix.Renameat2(parent, temp, parent, base, unix.RENAME_NOREPLACE) })
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		// Some file systems have no such flag. A directory replaces nothing but an empty one.
		err = retryEINTR(func() error { return unix.Renameat(parent, temp, parent, base) })
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return fs.ErrExist
	}
	return err
}

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
