package fsutil

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxNames is the maximum number of names of one directory that are held in memory. Ten thousand names of the maximum length
// need 6 MB.
const MaxNames = 10_000

// ErrTooManyNames means that a directory has more than [MaxNames] names.
var ErrTooManyNames = errors.New("too many names in one directory")

// ReadDir lists the directory rel ("" or "." is d itself), in byte order. The Info method of an entry calls [Dir.Lstat]. If there
// are more than [MaxNames] names, the error is [ErrTooManyNames]. [Dir.EachName] handles any number.
func (d *Dir) ReadDir(rel string) ([]fs.DirEntry, error) {
	entries, more, err := d.ReadSome(rel, MaxNames)
	if err == nil && more {
		return nil, &fs.PathError{Op: "read directory", Path: d.name(rel), Err: ErrTooManyNames}
	}
	return entries, err
}

// ReadSome works like [Dir.ReadDir], but reads at most the given number of names, most. It reads the first names in the file
// system's order, and returns them in byte order. The result more reports whether there are other names.
func (d *Dir) ReadSome(rel string, most int) (entries []fs.DirEntry, more bool, err error) {
	err = d.EachName(rel, func(name string, kind fs.FileMode) bool {
		if more = len(entries) == most; !more {
			entries = append(entries, &entry{name: name, mode: kind, dir: d, rel: path.Join(rel, name)})
		}
		return !more
	})
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, more, nil
}

// EachName calls found for each name in the directory rel, until found returns false. rel "" or "." means d itself. kind is
// the type of the file. The order is the file system's. EachName doesn't keep the names in memory. found may use d only if d
// is a Dir of [Dir.WithIdentity].
func (d *Dir) EachName(rel string, found func(name string, kind fs.FileMode) bool) error {
	return d.withComponents(listing, rel, func(names []string) error {
		fd, err := d.open(names, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		return Entries(fd, found)
	})
}

// entry is an fs.DirEntry whose Info method looks up the name relative to its Dir. An os.DirEntry would use a path.
type entry struct {
	name string
	mode fs.FileMode // type bits of the file's mode
	dir  *Dir
	rel  string
}

func (e *entry) Name() string               { return e.name }
func (e *entry) IsDir() bool                { return e.mode.IsDir() }
func (e *entry) Type() fs.FileMode          { return e.mode }
func (e *entry) Info() (fs.FileInfo, error) { return e.dir.Lstat(e.rel) }
func (e *entry) String() string             { return fs.FormatDirEntry(e) }

// Entries calls found for each name in the open directory fd except "." and "..", until found returns false. It starts at the
// current position of fd.
func Entries(fd int, found func(name string, mode fs.FileMode) bool) error {
	buf := make([]byte, 8<<10)
	for {
		n := 0
		err := retryEINTR(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			// struct linux_dirent64, see getdents64(2): 8 bytes inode, 8 offset, 2 record length, 1 type, name, NUL.
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
					continue // removed after the name was read
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

// entryMode converts a file type DT_… of getdents64(2) to the type bits of an fs.FileMode. The second result is false if the type
// is unknown.
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
