package fsutil

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// Node is an entry of the tree that [Dir.MakeTree] creates. Depending on the type bits of Mode, it is a directory, a FIFO, or,
// with neither bit, a regular file.
type Node struct {
	Name string      // path relative to the top of the tree; the node of its directory must come earlier in the list
	Mode fs.FileMode // type, permission bits, set-group-ID and sticky bits; the umask does not apply
	Data []byte      // content of a file

	// Spread makes ext4 place the subdirectories of this directory far apart. ext4 doesn't reuse an inode number that was freed
	// within the last minutes. For each new file it skips all such numbers near the directory, which takes time.
	Spread bool
}

// MakeTree creates the directory rel with all nodes in it. After an error, it removes the part that it has created. Until the
// tree is complete, it has a temporary name with a leading dot. If rel exists, the error is fs.ErrExist. All files belong to the
// actor, and nothing is synced. If confirm is not nil, MakeTree calls it just before the tree gets its name. If confirm returns
// an error, MakeTree removes the tree. confirm must only use a Dir of [Dir.WithIdentity].
func (d *Dir) MakeTree(rel string, mode fs.FileMode, nodes []Node, confirm func() error) error {
	return d.at("make", rel, func(parent int, base string) error {
		if _, err := LstatAt(parent, base); err == nil {
			return fs.ErrExist
		}
		temp := "." + base + "." + strconv.FormatUint(rand.Uint64(), 36) + ".new"
		err := createTree(parent, temp, mode, nodes)
		if err == nil && confirm != nil {
			err = confirm()
		}
		if err == nil {
			err = moveTree(parent, temp, base)
		}
		if err != nil {
			return errors.Join(err, ignoreMissing(removeTree(context.Background(), parent, temp)))
		}
		return nil
	})
}

// AddNodes creates nodes in the directory d, with the same rules for nodes as [Dir.MakeTree]. It keeps files that already exist.
func (d *Dir) AddNodes(nodes []Node) error {
	return d.withComponents("fill", "", func([]string) error { return createNodes(d.fd, nodes, true) })
}

func createTree(parent int, top string, mode fs.FileMode, nodes []Node) error {
	if err := createNode(parent, top, Node{Mode: fs.ModeDir | mode}); err != nil {
		return err
	}
	fd, err := openComponent(parent, top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return createNodes(fd, nodes, false)
}

// createNodes creates nodes in the directory top. It opens the directory of consecutive nodes only once. If keep is set, existing
// nodes are not an error.
func createNodes(top int, nodes []Node, keep bool) error {
	parent, opened := top, ""
	defer func() {
		if parent != top {
			closeFD(parent)
		}
	}()
	for _, n := range nodes {
		dir, base := path.Split(n.Name)
		names, err := components(dir)
		if err == nil && dir != opened {
			next := top
			if len(names) > 0 {
				next, err = walkBeneath(top, names, unix.O_PATH|unix.O_DIRECTORY, 0)
			}
			if err == nil {
				if parent != top {
					closeFD(parent)
				}
				parent, opened = next, dir
			}
		}
		if err == nil {
			err = createNode(parent, base, n)
		}
		if err != nil && !(keep && errors.Is(err, unix.EEXIST)) {
			return fmt.Errorf("%q: %w", n.Name, err)
		}
	}
	return nil
}

// createNode creates the node n under the name base in the directory parent. If the umask has changed the mode, createNode
// corrects it through a descriptor. It uses no path in /proc, because not every identity can use such a path.
func createNode(parent int, base string, n Node) error {
	var err error
	mode := modeBits(n.Mode)
	flags := unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL
	switch n.Mode.Type() {
	case fs.ModeDir:
		flags = unix.O_RDONLY | unix.O_DIRECTORY
		err = retryEINTR(func() error { return unix.Mkdirat(parent, base, mode&0o777) })
	case fs.ModeNamedPipe:
		flags = unix.O_RDWR | unix.O_NONBLOCK
		err = retryEINTR(func() error { return unix.Mknodat(parent, base, unix.S_IFIFO|mode&0o777, 0) })
	case 0:
	default:
		err = fmt.Errorf("cannot make a file of type %v: %w", n.Mode.Type(), fs.ErrInvalid)
	}
	if err != nil {
		return err
	}
	if n.Mode.Type() != 0 {
		if st, err := LstatAt(parent, base); err == nil && st.Mode&0o7777 == mode && !n.Spread {
			return nil
		}
	}
	fd, err := openat(parent, base, flags|unix.O_NOFOLLOW|unix.O_NOCTTY, mode&0o777)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	if err := writeAll(fd, base, n.Data); err != nil {
		return err
	}
	if n.Spread { // attribute T of chattr(1); file systems other than ext4 refuse it, which does no harm
		if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil {
			_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags)|topdir)
		}
	}
	if st, err := Fstat(fd); err == nil && st.Mode&0o7777 == mode {
		return nil
	}
	return retryEINTR(func() error { return unix.Fchmod(fd, mode) })
}

// topdir is the flag EXT4_TOPDIR_FL of Linux.
const topdir = 0x20000

func modeBits(mode fs.FileMode) uint32 {
	b := uint32(mode.Perm())
	if mode&fs.ModeSetgid != 0 && mode.IsDir() {
		b |= unix.S_ISGID
	}
	if mode&fs.ModeSticky != 0 {
		b |= unix.S_ISVTX
	}
	return b
}

// moveTree renames the directory temp to base, but fails if base exists.
func moveTree(parent int, temp, base string) error {
	err := RenameNew(parent, temp, base) // the fallback of RenameNew, an ordinary rename, replaces at most an empty directory
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
