// Package wholefile reads and replaces whole regular files, for programs other than PID 1. [Open] and [Read] follow symbolic links. In
// a directory that an agent can write, root must use package fsutil instead of these two. The package starts no goroutine.
package wholefile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// Open opens a regular file. Any other type of file is an error, without blocking. A program that can write to the directory
// could put a FIFO or a device there, which would block or never end. flags and mode are as in [os.OpenFile].
func Open(path string, flags int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flags|unix.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(err, errors.New("it is no regular file"))}
	}
	return f, nil
}

// Create creates a regular file that only its owner may read. If the file exists, Create returns an error. If root runs the program,
// Create follows only links that root alone can have made.
func Create(path string) (*os.File, error) {
	dir, err := OpenForRoot(filepath.Dir(path))
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat(dir, filepath.Base(path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "create", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// OpenForRoot opens the directory at a path that an operator has typed, for a program that root may run. It returns an O_PATH
// descriptor, which the caller closes. A relative path begins at the working directory. For root it follows only links that root
// alone can have made, even as the last component; any other link is [trust.ErrSymlink]. For other users it follows all links,
// like open(2).
func OpenForRoot(path string) (fd int, err error) {
	if path != "" && unix.Geteuid() == 0 {
		fd, _, err = trust.OpenDir(path, true, 0)
		return fd, err
	}
	return trust.Retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
}

// WriteNew creates a file, as [Create] does, and writes data to it.
func WriteNew(path string, data []byte) error {
	f, err := Create(path)
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Close())
	}
	return err
}

// Read returns the content of a regular file. If the file has more bytes than limit, Read returns an error.
func Read(path string, limit int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", limit)}
	}
	return data, err
}

// Replace atomically replaces the file at path by a file with the given mode and the content that fill writes. It also replaces a
// FIFO or a device. For root it follows only links that root alone can have made. The new content survives a crash of the machine
// only if sync is set.
func Replace(path string, mode fs.FileMode, sync bool, fill func(io.Writer) (int64, error)) error {
	dir, err := OpenForRoot(filepath.Dir(path))
	if err != nil {
		return &fs.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	f, temp, err := CreateUnnamed(dir, "."+filepath.Base(path)+".")
	if err != nil {
		return &fs.PathError{Op: "create", Path: path, Err: err}
	}
	defer f.Close()
	_, err = fill(f)
	err = cmp.Or(err, f.Chmod(mode))
	if err == nil && sync {
		err = f.Sync()
	}
	if err = RenameUnnamed(dir, f, temp, filepath.Base(path), err); err == nil && sync {
		err = unix.Syncfs(int(f.Fd()))
	}
	return err
}

// CreateUnnamed creates a file in the directory parent, for [RenameUnnamed]. The file has no name, so a killed process leaves
// no file behind. If the file system can't do that, the file has the name temp, which begins with prefix. The caller closes the
// file.
func CreateUnnamed(parent int, prefix string) (f *os.File, temp string, err error) {
	temp = prefix + strconv.FormatUint(rand.Uint64(), 36)
	fd, err := -1, unix.Access("/proc/self/fd", unix.F_OK) // RenameUnnamed gives the file its name by a path there
	if err == nil {
		fd, err = unix.Openat(parent, ".", unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		fd, err = unix.Openat(parent, temp, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	}
	return os.NewFile(uintptr(fd), temp), temp, err
}

// RenameUnnamed gives a file of [CreateUnnamed] a name in the directory parent, and replaces a file of this name. failed is an
// earlier error of the caller, or nil. After any error, RenameUnnamed returns the error, and the file has no name.
func RenameUnnamed(parent int, f *os.File, temp, name string, failed error) error {
	if failed == nil {
		failed = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), parent, temp, unix.AT_SYMLINK_FOLLOW)
		// the file already had the name temp, or /proc is missing
		if failed == nil || errors.Is(failed, unix.EEXIST) || errors.Is(failed, unix.ENOENT) {
			failed = unix.Renameat(parent, temp, parent, name)
		}
	}
	if failed != nil {
		_ = unix.Unlinkat(parent, temp, 0) // fails if the file has no name
	}
	return failed
}
