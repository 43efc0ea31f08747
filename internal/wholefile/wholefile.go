// Package wholefile reads and replaces whole regular files, for programs other than PID 1. Its functions follow symbolic links. In
// a directory that an agent can write, root must use package fsutil instead, except for [Create] and [OpenForRoot]. The package
// starts no goroutine.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"hinit/internal/trust"
)

// Open opens a regular file. For any other type of file it returns an error without blocking. A program that can write to the
// directory could put a FIFO or a device there, which would block or never end. flags and mode are as in [os.OpenFile].
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
	for {
		fd, err = unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
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

// Read returns the content of a regular file. If the file has more bytes than the argument most, Read returns an error.
func Read(path string, most int64) ([]byte, error) {
	f, err := Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has more than %d bytes", most)}
	}
	return data, err
}

// Replace atomically replaces the file at path with the given content and mode: it writes a temporary file in the same directory
// and renames it. A crash of the machine may lose the new content, because Replace doesn't sync it.
func Replace(path string, content io.Reader, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the caller gets the first error
	}
	return err
}
