package fsutil

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/trust"
)

// MaxDirNames is the maximum number of names of a directory in memory: 6 MB with the longest names.
const MaxDirNames = 10_000

// ErrTooManyNames means that a directory has more than [MaxDirNames] names.
var ErrTooManyNames = errors.New("too many names in one directory")

// ReadDir lists the directory rel ("" or "." is d itself) in byte order. The method Info of an entry calls [Dir.Lstat]. More than
// [MaxDirNames] names are [ErrTooManyNames]; [Dir.EachName] handles any number.
func (d *Dir) ReadDir(rel string) ([]fs.DirEntry, error) {
	entries, more, err := d.ReadAtMost(rel, MaxDirNames)
	if err == nil && more {
		return nil, &fs.PathError{Op: "read directory", Path: d.displayPath(rel), Err: ErrTooManyNames}
	}
	return entries, err
}

// ReadAtMost lists at most the given number of names like [Dir.ReadDir]: the first in the order of the file system, returned in
// byte order. more says whether the directory has other names.
func (d *Dir) ReadAtMost(rel string, limit int) (entries []fs.DirEntry, more bool, err error) {
	err = d.EachName(rel, func(name string, kind fs.FileMode) bool {
		more = len(entries) == limit
		if !more {
			entries = append(entries, &dirEntry{name: name, mode: kind, dir: d, rel: path.Join(rel, name)})
		}
		return !more
	})
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, more, nil
}

// EachName calls found for each name in the directory rel, with the type of the file, until found returns false. "" and "." are d
// itself. The order is the order of the file system. EachName keeps no names in memory. found may use d only if d is a Dir of
// [Dir.WithIdentity].
func (d *Dir) EachName(rel string, found func(name string, kind fs.FileMode) bool) error {
	return d.withComponents(readDirVerb, rel, func(names []string) error {
		fd, err := d.open(names, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return EachEntry(fd, found)
	})
}

// dirEntry is an fs.DirEntry that looks its name up relative to its Dir. An os.DirEntry would use a path.
type dirEntry struct {
	name string
	mode fs.FileMode // type of the file, without permission bits
	dir  *Dir
	rel  string
}

func (e *dirEntry) Name() string               { return e.name }
func (e *dirEntry) IsDir() bool                { return e.mode.IsDir() }
func (e *dirEntry) Type() fs.FileMode          { return e.mode }
func (e *dirEntry) Info() (fs.FileInfo, error) { return e.dir.Lstat(e.rel) }

// EachEntry calls found for each name in the open directory fd except "." and "..", until found returns false. It begins at the
// current position of fd.
func EachEntry(fd int, found func(name string, mode fs.FileMode) bool) error {
	buf := make([]byte, 8<<10)
	for {
		n, err := trust.Retry(func() (int, error) { return unix.Getdents(fd, buf) })
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			// struct linux_dirent64 (getdents64(2)): 8 bytes inode, 8 offset, 2 record length, 1 type, name, NUL
			const reclenAt, typeAt, nameAt = 16, 18, 19
			reclen := int(binary.NativeEndian.Uint16(rest[reclenAt:]))
			name, _, _ := strings.Cut(string(rest[nameAt:reclen]), "\x00")
			kind := rest[typeAt]
			rest = rest[reclen:]
			if name == "." || name == ".." {
				continue
			}
			mode, ok := entryMode(kind)
			if !ok {
				st, err := LstatAt(fd, name)
				if errors.Is(err, unix.ENOENT) {
					continue
				}
				if err != nil {
					return err
				}
				mode, _ = entryMode(uint8(st.Mode & unix.S_IFMT >> 12)) // these type bits equal the DT_ value
			}
			if !found(name, mode) {
				return nil
			}
		}
	}
}

// entryMode converts a type DT_… of getdents64(2) to the type bits of an fs.FileMode. The second result is false if kind is
// unknown.
func entryMode(kind uint8) (fs.FileMode, bool) {
	switch kind {
	case unix.DT_REG:
		return 0, true
	case unix.DT_DIR:
		return fs.ModeDir, true
	case unix.DT_LNK:
		return fs.ModeSymlink, true
	case unix.DT_FIFO:
		return fs.ModeNamedPipe, true
	case unix.DT_SOCK:
		return fs.ModeSocket, true
	case unix.DT_CHR:
		return fs.ModeDevice | fs.ModeCharDevice, true
	case unix.DT_BLK:
		return fs.ModeDevice, true
	}
	return fs.ModeIrregular, false
}

const (
	// maxRemoveDepth is the maximum depth of directories that RemoveAll holds open. It first moves deeper directories to the
	// top of the tree.
	maxRemoveDepth = 32
	// maxRemovePasses is the maximum number of passes of RemoveAll over the tree, because another process may keep creating
	// files.
	maxRemovePasses = 1 << 16
	// maxRemoveNames is the maximum number of subdirectories of one directory for each pass.
	maxRemoveNames = 1 << 10
)

// Remove removes the file, link or empty directory rel. For a missing file, the error is fs.ErrNotExist.
func (d *Dir) Remove(rel string) error { return d.withParent("remove", rel, removeName) }

// RemoveAll removes rel and its content, and returns nil if rel is missing. Links are removed and never followed. d itself
// can't be removed. If the owner of a directory lacks permissions for it, RemoveAll first adds them. It keeps few names in
// memory and few files open, even for a large tree.
func (d *Dir) RemoveAll(rel string) error { return d.RemoveAllUntil(context.Background(), rel) }

// RemoveAllUntil removes like [Dir.RemoveAll], but returns the error of ctx soon after ctx has ended. The rest of the tree
// stays.
func (d *Dir) RemoveAllUntil(ctx context.Context, rel string) error {
	return ignoreMissing(d.withParent("remove", rel, func(parent int, name string) error { return removeTree(ctx, parent, name) }))
}

func removeName(parent int, name string) error {
	err := callWithFault(faultinject.CallRemove, name, func() error { return unix.Unlinkat(parent, name, 0) })
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	return callWithFault(faultinject.CallRemove, name, func() error { return unix.Unlinkat(parent, name, unix.AT_REMOVEDIR) })
}

// removeTree removes the file or directory name in the open directory parent. It repeats its work while other processes add
// files, up to maxRemovePasses times.
func removeTree(ctx context.Context, parent int, name string) error {
	for range maxRemovePasses {
		err := removeName(parent, name)
		if !notEmpty(err) {
			return err
		}
		if err := cmp.Or(ctx.Err(), removeContents(ctx, -1, parent, name, 1)); err != nil {
			return err
		}
	}
	return fmt.Errorf("files keep appearing: %w", unix.ENOTEMPTY)
}

func notEmpty(err error) bool { return errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) }

// removeContents removes all files in the directory name, which is depth levels below the parent of the open directory top (-1
// means that name is the top). It moves a directory that is too deep to top.
func removeContents(ctx context.Context, top, parent int, name string, depth int) error {
	dir, err := openForRemoval(parent, name)
	if errors.Is(err, ErrSymlink) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil // another process has replaced the file; the next pass removes it
	}
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if depth > maxRemoveDepth {
		up := ".removed." + strconv.FormatUint(rand.Uint64(), 36)
		return retryEINTR(func() error { return unix.Renameat(parent, name, top, up) })
	}
	if top < 0 {
		top = dir
	}
	var subdirs []string
	var firstErr error
	note := func(name string, err error) {
		if firstErr == nil && err != nil && !errors.Is(err, unix.ENOENT) && !notEmpty(err) {
			firstErr = fmt.Errorf("%q: %w", name, err)
		}
	}
	err = EachEntry(dir, func(name string, _ fs.FileMode) bool {
		err := removeName(dir, name)
		note(name, err)
		if notEmpty(err) {
			subdirs = append(subdirs, name)
		}
		return ctx.Err() == nil && len(subdirs) < maxRemoveNames
	})
	for _, name := range subdirs {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		note(name, removeContents(ctx, top, dir, name, depth+1))
		note(name, removeName(dir, name)) // the next pass removes the directory if another process has added a file
	}
	return cmp.Or(firstErr, ignoreMissing(err))
}

// openForRemoval gives the owner of a directory all permissions, and opens it. A move to another directory changes the entry
// "..", so the directory must be writable.
func openForRemoval(parent int, name string) (int, error) {
	at, err := openComponent(parent, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer closeFD(at)
	if st, err := Fstat(at); err == nil && st.Mode&0o700 != 0o700 {
		_ = ChmodFD(at, st.Mode&0o7777|0o700)
	}
	return openat(at, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// TreeNode is an entry of the tree for [Dir.MakeTree]. The type bits of Mode say whether it is a directory, a FIFO or, without
// any type bit, a regular file.
type TreeNode struct {
	Name string      // path below the top of the tree; the node of its directory comes earlier in the list
	Mode fs.FileMode // type, permission, set-group-ID and sticky bits; the umask does not apply
	Data []byte

	// SpreadSubdirs makes ext4 place the subdirectories of this directory far apart. Otherwise ext4 searches the inodes near the
	// directory for each new file, and skips all recently freed inodes, which takes time.
	SpreadSubdirs bool
}

// MakeTree creates the directory rel with all nodes in it. Until it is complete it has a temporary name with a dot in front;
// after an error it is removed. If rel exists, the error is fs.ErrExist. All files belong to the actor, and nothing is synced.
// confirm, if not nil, is called just before the tree gets its name, and an error from it removes the tree. confirm must only
// use a Dir of [Dir.WithIdentity].
func (d *Dir) MakeTree(rel string, mode fs.FileMode, nodes []TreeNode, confirm func() error) error {
	return d.withParent("make", rel, func(parent int, base string) error {
		if _, err := LstatAt(parent, base); err == nil {
			return fs.ErrExist
		}
		temp := "." + base + "." + strconv.FormatUint(rand.Uint64(), 36) + ".new"
		err := createTree(parent, temp, mode, nodes)
		if err == nil && confirm != nil {
			err = confirm()
		}
		if err == nil {
			err = RenameNoReplace(parent, temp, base) // without RENAME_NOREPLACE, the ordinary rename replaces at most an empty directory
			if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
				err = fs.ErrExist
			}
		}
		if err != nil {
			return errors.Join(err, ignoreMissing(removeTree(context.Background(), parent, temp)))
		}
		return nil
	})
}

// AddNodes creates nodes in the directory d, by the rules of [Dir.MakeTree]. Existing files are kept.
func (d *Dir) AddNodes(nodes []TreeNode) error {
	return d.withComponents("fill", "", func([]string) error { return createNodes(d.fd, nodes, true) })
}

func createTree(parent int, top string, mode fs.FileMode, nodes []TreeNode) error {
	if err := createNode(parent, top, TreeNode{Mode: fs.ModeDir | mode}); err != nil {
		return err
	}
	fd, err := openComponent(parent, top, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return createNodes(fd, nodes, false)
}

// createNodes creates nodes in the directory top, and opens the directory of consecutive nodes only once. If keep is set, an
// existing node is not an error.
func createNodes(top int, nodes []TreeNode, keep bool) error {
	parent, opened := top, ""
	defer func() {
		if parent != top {
			closeFD(parent)
		}
	}()
	for _, n := range nodes {
		dir, base := path.Split(n.Name)
		names, err := splitPath(dir)
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

// createNode creates the node n as base in parent. It corrects a mode that the umask has changed through a descriptor, because
// not every identity can use a path in /proc.
func createNode(parent int, base string, n TreeNode) error {
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
		if st, err := LstatAt(parent, base); err == nil && st.Mode&0o7777 == mode && !n.SpreadSubdirs {
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
	if n.SpreadSubdirs {
		if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err == nil {
			_ = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags)|fsTopdirFlag)
		}
	}
	if st, err := Fstat(fd); err == nil && st.Mode&0o7777 == mode {
		return nil
	}
	return retryEINTR(func() error { return unix.Fchmod(fd, mode) })
}

const fsTopdirFlag = 0x20000

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

func ignoreMissing(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
