package fsutil

import (
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
	"hinit/internal/trust"
)

// ErrNotRegular means that a file is not a regular file. For a link, the error is [ErrSymlink] instead.
var ErrNotRegular = errors.New("not a regular file")

// ErrTooLarge means that a file exceeds the caller's limit.
var ErrTooLarge = errors.New("file too large")

// minReadSpace is the free space beyond the expected size for each read(2). So the last read, which finds the end of the file,
// needs no larger buffer.
const minReadSpace = 512

// ReadFile returns the content of the regular file rel, or [ErrTooLarge] if it has more than max bytes. A FIFO, device or socket
// is [ErrNotRegular], without a wait.
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

// Open opens the regular file rel for reading, with the errors of [Dir.ReadFile]. Errors of the returned file contain its path.
// The caller closes it.
func (d *Dir) Open(rel string) (*os.File, error) { return d.openFile("open", rel, unix.O_RDONLY, 0) }

// OpenUpdate opens the regular file rel for reading and writing, with the errors of [Dir.ReadFile]. A missing file is created with
// the permission bits mode (less the umask). The caller closes it.
func (d *Dir) OpenUpdate(rel string, mode fs.FileMode) (*os.File, error) {
	return d.openFile("open", rel, unix.O_RDWR|unix.O_CREAT, mode)
}

// OpenAppend opens the regular file rel for appending, with the errors of [Dir.ReadFile]. A missing file is created with the
// permission bits mode (less the umask). The caller closes it.
func (d *Dir) OpenAppend(rel string, mode fs.FileMode) (*os.File, error) {
	return d.openFile("append to", rel, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, mode)
}

func (d *Dir) openFile(verb, rel string, flags int, mode fs.FileMode) (f *os.File, err error) {
	err = d.withComponents(verb, rel, func(names []string) error {
		fd, _, err := d.openRegular(names, flags, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		if err := unix.SetNonblock(fd, false); err != nil { // a process that inherits the file would share the flag
			closeFD(fd)
			return err
		}
		f = os.NewFile(uintptr(fd), filepath.Join(d.path, rel))
		return nil
	})
	return f, err
}

// readAll reads the file fd to its end, or until it has more than max bytes. size is the expected size, which may be wrong: the
// file may grow, and in /proc it is 0.
func readAll(fd int, size, max int64) ([]byte, error) {
	data := make([]byte, 0, size+minReadSpace)
	for int64(len(data)) <= max {
		data = slices.Grow(data, minReadSpace)
		n, err := trust.Retry(func() (int, error) { return unix.Read(fd, data[len(data):cap(data)]) })
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

// Append appends data to the regular file rel in one write(2), so that the lines of several writers don't mix. A missing
// file is created with the permission bits mode (less the umask). After a partial write, for example on a full disk, the written
// part stays, and the error wraps io.ErrShortWrite.
func (d *Dir) Append(rel string, data []byte, mode fs.FileMode) error {
	return d.withComponents("append to", rel, func(names []string) error {
		fd, _, err := d.openRegular(names, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT, uint32(mode.Perm()))
		if err != nil {
			return err
		}
		defer closeFD(fd)
		n, err := writeOnce(fd, rel, data)
		if err == nil && n < len(data) {
			err = fmt.Errorf("%d of %d bytes: %w", n, len(data), io.ErrShortWrite)
		}
		return err
	})
}

// openRegular opens the regular file with the path names, relative to d, and returns its size. O_NONBLOCK prevents a wait for a
// FIFO.
func (d *Dir) openRegular(names []string, flags int, mode uint32) (fd int, size int64, err error) {
	if faultinject.Enabled {
		if err := faultinject.BeforeCall(faultinject.CallOpen, strings.Join(names, "/")); err != nil {
			return -1, 0, err
		}
	}
	fd, err = d.open(names, flags|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) { // a socket, a FIFO without a reader, or a directory
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

// ReplaceOptions say how [Dir.Replace] makes the new file.
type ReplaceOptions struct {
	// Mode are the permission bits of the new file; the umask does not apply.
	Mode fs.FileMode
	// KeepMode gives the new file the permission bits of a regular file that it replaces.
	KeepMode bool
	// NoSync leaves out all syncing. A crash of the machine may then lose the new content.
	NoSync bool
	// SyncDirLater leaves out the sync of the directory. A crash of the machine may bring back the old content, unless the
	// caller uses SyncParentDir.
	SyncDirLater bool
	// BeforeRename is called just before the rename, with the file that now has the name rel, or nil. Replace stops and returns
	// an error from BeforeRename. BeforeRename must not use the Dir.
	BeforeRename func(now fs.FileInfo) error
}

// Replace sets the content of the regular file rel to data. Readers see the old or the new content, even after a crash of the
// machine. Replace writes a temporary file in the same directory, syncs it, renames it to rel, and syncs the directory. The new
// file belongs to the actor.
//
// After an error before the rename, the old file is unchanged and the temporary file is gone. If only the last sync fails, the
// new content may not survive a crash; the error says so.
//
// A link at rel is [ErrSymlink], and any other irregular file [ErrNotRegular]. A link that appears after this check is
// replaced, and its target isn't touched.
func (d *Dir) Replace(rel string, data []byte, o ReplaceOptions) error {
	return d.withParent("replace", rel, func(parent int, base string) error { return replaceIn(parent, base, data, o) })
}

// replaceIn replaces a file in the open directory parent. It writes a temporary file, calls o.Confirm, renames the file to
// base, and syncs it and the directory by o.
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
	// Open the directory first. If it can't be synced, this fails before any change.
	dir, err := openat(parent, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer closeFD(dir)

	temp, err := writeTemp(parent, base, data, mode, o.NoSync)
	if err != nil {
		return err
	}
	err = callBeforeRename(parent, base, o.BeforeRename)
	if err == nil {
		err = callWithFault(faultinject.CallRename, temp, func() error { return unix.Renameat(parent, temp, parent, base) })
	}
	if err != nil {
		return errors.Join(err, removeName(parent, temp))
	}
	if o.NoSync || o.SyncDirLater {
		return nil
	}
	if err := fsync(dir, base); err != nil {
		return fmt.Errorf("written, but it may not survive a crash: sync of the directory: %w", err)
	}
	return nil
}

// SyncParentDir syncs the directory of rel, so that a rename by [Dir.Replace] survives a crash of the machine. It blocks until
// the disk has stored the directory.
func (d *Dir) SyncParentDir(rel string) error {
	return d.withParent("sync the directory of", rel, func(parent int, base string) error {
		dir, err := openat(parent, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		defer closeFD(dir)
		return fsync(dir, base)
	})
}

// callBeforeRename calls ask, unless ask is nil, with the status of the file base in the open directory parent, or with nil for a
// missing file.
func callBeforeRename(parent int, base string, ask func(fs.FileInfo) error) error {
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

// writeTemp writes data to a new temporary file in parent and returns its name. It syncs the file, unless noSync is set. After
// an error, the file is removed.
func writeTemp(parent int, base string, data []byte, mode uint32, noSync bool) (string, error) {
	name := "." + base + "." + strconv.FormatUint(rand.Uint64(), 36) + ".tmp"
	fd, err := createNew(parent, name, 0o600)
	if err != nil {
		return "", fmt.Errorf("temporary file: %w", err)
	}
	err = setModeAndWrite(fd, name, data, mode)
	if err == nil && !noSync {
		err = fsync(fd, name)
	}
	closeFD(fd)
	if err != nil {
		return "", errors.Join(fmt.Errorf("temporary file: %w", err), removeName(parent, name))
	}
	return name, nil
}

func setModeAndWrite(fd int, name string, data []byte, mode uint32) error {
	if err := callWithFault(faultinject.CallChmod, name, func() error { return unix.Fchmod(fd, mode) }); err != nil {
		return err
	}
	return writeAll(fd, name, data)
}

func writeAll(fd int, name string, data []byte) error {
	for len(data) > 0 {
		n, err := writeOnce(fd, name, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func writeOnce(fd int, name string, data []byte) (int, error) {
	return countWithFault(faultinject.CallWrite, name, func() (int, error) {
		return unix.Write(fd, data[:faultinject.AllowedBytes(faultinject.CallWrite, name, len(data))])
	})
}

// createNew creates the regular file name in parent, and opens it for writing.
func createNew(parent int, name string, mode uint32) (int, error) {
	return countWithFault(faultinject.CallOpen, name, func() (int, error) {
		return openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_NOCTTY, mode)
	})
}

// fsync calls fsync(2). EINVAL means that the file system can't sync a directory and doesn't need to, so it is no error.
func fsync(fd int, name string) error {
	err := callWithFault(faultinject.CallSync, name, func() error { return unix.Fsync(fd) })
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// Overwrite replaces the content and the permission bits of the regular file rel in place, and syncs the file. It can work on a
// full disk: if the file was at least as large as data, most file systems need no new blocks. After a crash, the file may contain
// parts of both contents. It has the errors of [Dir.ReadFile].
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
		if err := callWithFault(faultinject.CallWrite, name, func() error { return unix.Ftruncate(fd, int64(len(data))) }); err != nil {
			return err
		}
		return fsync(fd, name)
	})
}

// statInfo is an fs.FileInfo made from a stat(2) call. Package os would have to open the file.
type statInfo struct {
	name string
	sys  syscall.Stat_t // status of the file; package os has the same type in Sys
}

func newStat(name string, st unix.Stat_t) *statInfo {
	return &statInfo{name: name, sys: syscall.Stat_t{
		Dev: st.Dev, Ino: st.Ino, Nlink: st.Nlink, Mode: st.Mode, Uid: st.Uid, Gid: st.Gid, Rdev: st.Rdev, Size: st.Size,
		Blksize: st.Blksize, Blocks: st.Blocks,
		Atim: syscall.Timespec(st.Atim), Mtim: syscall.Timespec(st.Mtim), Ctim: syscall.Timespec(st.Ctim),
	}}
}

func (s *statInfo) Name() string       { return s.name }
func (s *statInfo) Size() int64        { return s.sys.Size }
func (s *statInfo) ModTime() time.Time { return time.Unix(s.sys.Mtim.Unix()) }
func (s *statInfo) IsDir() bool        { return s.Mode().IsDir() }
func (s *statInfo) Sys() any           { return &s.sys }

func (s *statInfo) Mode() fs.FileMode {
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

// Stat returns the kernel's status behind info, which must come from package os or this package.
func Stat(info fs.FileInfo) *syscall.Stat_t { return info.Sys().(*syscall.Stat_t) }

// UID returns the owner of the file that info describes.
func UID(info fs.FileInfo) uint32 { return Stat(info).Uid }
