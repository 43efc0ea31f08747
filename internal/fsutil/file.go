package fsutil

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
)

// ErrNotRegular means that a name should be a regular file but is something else. For a link, the error is [ErrSymlink] instead.
// Other errors wrap ErrNotRegular.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge means that a file is larger than the caller allows. Other errors wrap ErrTooLarge.
var ErrTooLarge = errors.New("file too large")

// tempTries is the maximum number of random names tried for a temporary file.
const tempTries = 100

// minRead is the free space in the buffer that each read(2) gets in addition to the expected size. So the read reaches the end of
// the file without enlarging the buffer.
const minRead = 512

// ReadFile returns the content of the regular file rel, or [ErrTooLarge] if it has more than max bytes. For a FIFO, a device or a
// socket the error is [ErrNotRegular], and ReadFile does not wait.
func (d *Dir) ReadFile(rel string, max int64) (data []byte, err error) {
	err = d.withComponents("read", rel, func(names []string) error {
		fd, size, err := d.openRegular(names, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		if size <= max {
			data, err = readAll(fd, size, max)
		}
		if size > max || int64(len(data)) > max {
			data, err = nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, max)
		}
		return err
	})
	return data, err
}

// Open opens the regular file rel for reading. It fails with the same errors as [Dir.ReadFile]. Errors of the returned file
// contain its path. The caller closes the file.
func (d *Dir) Open(rel string) (*os.File, error) { return d.openFile("open", rel, unix.O_RDONLY, 0) }

// OpenUpdate opens the regular file rel for reading and writing. If the file is missing, it is created with the given
// permission bits (less the umask). OpenUpdate fails with the same errors as [Dir.ReadFile]. The caller closes the file.
func (d *Dir) OpenUpdate(rel string, mode fs.FileMode) (*os.File, error) {
	return d.openFile("open", rel, unix.O_RDWR|unix.O_CREAT, mode)
}

// OpenAppend opens the regular file rel for appending. If the file is missing, it is created with the given permission bits
// (less the umask). OpenAppend fails with the same errors as [Dir.ReadFile]. The caller closes the file.
func (d *Dir) OpenAppend(rel string, mode fs.FileMode) (*os.File, error) {
	return d.openFile("append to", rel, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, mode)
}

func (d *Dir) openFile(verb, rel string, flags int, mode fs.FileMode) (f *os.File, err error) {
	err = d.withComponents(verb, rel, func(names []string) error {
		fd, _, err := d.openRegular(names, flags, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, false); err != nil { // otherwise a process that inherits the file would share the flag
			closeFD(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), filepath.Join(d.path, rel))
		return nil
	})
	return f, err
}

// readAll reads the open file fd to its end, or until it has read more than max bytes. size is the expected size, which may be
// wrong: the file may grow, and in /proc it is 0.
func readAll(fd int, size, max int64) ([]byte, error) {
	data := make([]byte, 0, size+minRead)
	for int64(len(data)) <= max {
		n := 0
		data = slices.Grow(data, minRead)
		err := retryEINTR(func() (err error) {
			n, err = unix.Read(fd, data[len(data):cap(data)])
			return err
		})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		data = data[:len(data)+n]
	}
	return data, nil
}

// Append appends data to the regular file rel in one write(2), so that the lines of several writers don't mix. It returns the new
// size of the file. A missing file is created with the given permission bits (less the umask). After a partial write, for example
// because the disk is full, the written part stays in the file, and the error wraps io.ErrShortWrite.
func (d *Dir) Append(rel string, data []byte, mode fs.FileMode) (size int64, err error) {
	err = d.withComponents("append to", rel, func(names []string) error {
		fd, _, err := d.openRegular(names, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		defer closeFD(fd)
		n := 0
		writeErr := callWithFault(faultinject.Write, rel, func() (err error) {
			n, err = unix.Write(fd, data[:faultinject.Room(faultinject.Write, rel, len(data))])
			return err
		})
		if writeErr == nil && n < len(data) {
			writeErr = fmt.Errorf("%d of %d bytes: %w", n, len(data), io.ErrShortWrite)
		}
		st, statErr := Fstat(fd)
		size = st.Size
		return errors.Join(writeErr, statErr)
	})
	return size, err
}

// openRegular opens the regular file whose path, relative to d, has the components names, and returns its size. Because of
// O_NONBLOCK, it doesn't wait if the file is a FIFO.
func (d *Dir) openRegular(names []string, flags int, mode uint32) (fd int, size int64, err error) {
	if faultinject.Enabled {
		if err := faultinject.Before(faultinject.Open, strings.Join(names, "/")); err != nil {
			return -1, 0, err
		}
	}
	fd, err = d.open(names, flags|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) { // socket or FIFO without a reader; directory
		return -1, 0, fmt.Errorf("%w (%w)", ErrNotRegular, err)
	}
	if err != nil {
		return -1, 0, err
	}
	st, err := Fstat(fd)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = ErrNotRegular
	}
	if err != nil {
		closeFD(fd)
		return -1, 0, err
	}
	return fd, st.Size, nil
}

// ReplaceOptions tells [Dir.Replace] how to create the new file.
type ReplaceOptions struct {
	// Mode is the permission bits of the new file; the umask does not apply.
	Mode fs.FileMode
	// KeepMode makes the new file keep the permission bits of an existing regular file.
	KeepMode bool
	// TempName is the pattern for the name of the temporary file, which is created in the same directory. Random letters replace
	// its last "*", or are appended. "" means "." + base + ".*.tmp", where base is the file's own name.
	TempName string
	// NoSync skips all syncing. If the machine then crashes, the new content may be lost.
	NoSync bool
	// SyncNameLater skips the sync of the directory. The caller syncs the directory later with SyncName. Until then, a crash of the
	// machine may bring back the old content.
	SyncNameLater bool
	// Confirm is called right before the rename. The argument now describes the file that has the name rel at that moment, or is
	// nil if there is no such file. If Confirm returns an error, Replace gives up and returns it. Confirm must not use the Dir.
	Confirm func(now fs.FileInfo) error
}

// Replace sets the content of the regular file rel to data. Readers see either the old or the new content, even after a crash of
// the machine. Replace writes a temporary file in the same directory, syncs it, renames it to rel, and syncs the directory. The
// new file belongs to the actor.
//
// After an error before the rename, the old file is unchanged and the temporary file is gone. If only the last sync fails, the
// new content is visible but may not survive a crash; the error says so.
//
// If rel is a link, the error is [ErrSymlink]; if it is another irregular file, [ErrNotRegular]. A link that appears after this
// check is itself replaced, and its target isn't touched.
func (d *Dir) Replace(rel string, data []byte, o ReplaceOptions) error {
	return d.at("replace", rel, func(parent int, base string) error { return replaceIn(parent, base, data, o) })
}

func replaceIn(parent int, base string, data []byte, o ReplaceOptions) error {
	mode := uint32(o.Mode.Perm())
	switch st, err := LstatAt(parent, base); {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return symlinkError(base)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return ErrNotRegular
	case o.KeepMode:
		mode = st.Mode & 0o777
	}
	// Open the directory first: if the directory can't be synced, the open fails before anything has changed.
	dir, err := openat(parent, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(dir)

	temp, err := writeTemp(parent, base, data, mode, o)
	if err != nil {
		return err
	}
	err = confirm(parent, base, o.Confirm)
	if err == nil {
		err = callWithFault(faultinject.Rename, temp, func() error { return unix.Renameat(parent, temp, parent, base) })
	}
	if err != nil {
		return errors.Join(err, removeName(parent, temp))
	}
	if o.NoSync || o.SyncNameLater {
		return nil
	}
	if err := fsync(dir, base); err != nil {
		return fmt.Errorf("written, but it may not survive a crash: sync of the directory: %w", err)
	}
	return nil
}

// SyncName syncs the directory that contains rel, so that a rename by [Dir.Replace] survives a crash of the machine. It blocks
// until the disk has stored the change.
func (d *Dir) SyncName(rel string) error {
	return d.at("sync the directory of", rel, func(parent int, base string) error {
		dir, err := openat(parent, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		return fsync(dir, base)
	})
}

func confirm(parent int, base string, ask func(fs.FileInfo) error) error {
	if ask == nil {
		return nil
	}
	st, err := LstatAt(parent, base)
	if errors.Is(err, unix.ENOENT) {
		return ask(nil)
	}
	if err != nil {
		return err
	}
	return ask(newStat(base, st))
}

// writeTemp writes data to a new temporary file in the directory parent and returns the file's name. After an error, it has
// removed the temporary file.
func writeTemp(parent int, base string, data []byte, mode uint32, o ReplaceOptions) (string, error) {
	pattern := o.TempName
	pattern = cmp.Or(pattern, "."+base+".*.tmp")
	if strings.ContainsAny(pattern, "/\x00") {
		return "", fmt.Errorf("name of the temporary file %q: %w", pattern, fs.ErrInvalid)
	}
	fd, name, err := CreateTemp(parent, pattern)
	if err != nil {
		return "", fmt.Errorf("temporary file: %w", err)
	}
	err = setModeAndWrite(fd, name, data, mode)
	if err == nil && !o.NoSync {
		err = fsync(fd, name)
	}
	closeFD(fd)
	if err != nil {
		return "", errors.Join(fmt.Errorf("temporary file: %w", err), removeName(parent, name))
	}
	return name, nil
}

func setModeAndWrite(fd int, name string, data []byte, mode uint32) error {
	if err := callWithFault(faultinject.Chmod, name, func() error { return unix.Fchmod(fd, mode) }); err != nil {
		return err
	}
	return writeAll(fd, name, data)
}

func writeAll(fd int, name string, data []byte) error {
	for len(data) > 0 {
		n := 0
		err := callWithFault(faultinject.Write, name, func() (err error) {
			n, err = unix.Write(fd, data[:faultinject.Room(faultinject.Write, name, len(data))])
			return err
		})
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// CreateTemp creates a file in the open directory parent. The file's name is pattern with random text in place of the last "*",
// or at the end if there is no "*". CreateTemp returns the open file and its name.
func CreateTemp(parent int, pattern string) (fd int, name string, err error) {
	prefix, suffix := pattern, ""
	if i := strings.LastIndexByte(pattern, '*'); i >= 0 {
		prefix, suffix = pattern[:i], pattern[i+1:]
	}
	for range tempTries {
		name = prefix + strconv.FormatUint(rand.Uint64(), 36) + suffix
		err = callWithFault(faultinject.Open, name, func() (err error) {
			fd, err = openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_NOCTTY, 0o600)
			return err
		})
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return fd, name, err
}

// fsync calls fsync(2). It ignores EINVAL, which means that the file system can't sync a directory and doesn't need to.
func fsync(fd int, name string) error {
	err := callWithFault(faultinject.Sync, name, func() error { return unix.Fsync(fd) })
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// Overwrite replaces the content and the permission bits of the existing regular file rel in place, and syncs it. If the file was
// at least as large as data, and the file system overwrites in place, this needs no new disk blocks. After a crash, the file may
// contain parts of both the old and the new content. It fails with the same errors as [Dir.ReadFile]. It blocks as long as the
// disk takes.
func (d *Dir) Overwrite(rel string, data []byte, mode fs.FileMode) error {
	return d.withComponents("overwrite", rel, func(names []string) error {
		fd, _, err := d.openRegular(names, unix.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer closeFD(fd)
		name := filepath.Base(rel)
		if err := setModeAndWrite(fd, name, data, uint32(mode.Perm())); err != nil {
			return err
		}
		if err := callWithFault(faultinject.Write, name, func() error { return unix.Ftruncate(fd, int64(len(data))) }); err != nil {
			return err
		}
		return fsync(fd, name)
	})
}

// stat is an fs.FileInfo made from the result of one stat(2) call. Package os would first have to open the file.
type stat struct {
	name string
	sys  syscall.Stat_t // the same type that package os returns from Sys
}

func newStat(name string, st unix.Stat_t) *stat {
	return &stat{name: name, sys: syscall.Stat_t{
		Dev: st.Dev, Ino: st.Ino, Nlink: st.Nlink, Mode: st.Mode, Uid: st.Uid, Gid: st.Gid, Rdev: st.Rdev, Size: st.Size,
		Blksize: st.Blksize, Blocks: st.Blocks,
		Atim: syscall.Timespec(st.Atim), Mtim: syscall.Timespec(st.Mtim), Ctim: syscall.Timespec(st.Ctim),
	}}
}

func (s *stat) Name() string       { return s.name }
func (s *stat) Size() int64        { return s.sys.Size }
func (s *stat) ModTime() time.Time { return time.Unix(s.sys.Mtim.Unix()) }
func (s *stat) IsDir() bool        { return s.Mode().IsDir() }
func (s *stat) Sys() any           { return &s.sys }

func (s *stat) Mode() fs.FileMode {
	mode, _ := entryMode(uint8(s.sys.Mode & unix.S_IFMT >> 12)) // the type bits of st_mode, shifted by 12, are a DT_ value
	mode |= fs.FileMode(s.sys.Mode & 0o777)
	if s.sys.Mode&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if s.sys.Mode&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if s.sys.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// Stat returns the kernel's status of a file. info must come from package os or from this package.
func Stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// UID returns the owner of a file. info must come from package os or from this package.
func UID(info fs.FileInfo) uint32 { return Stat(info).Uid }
