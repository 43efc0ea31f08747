// Package wholefile reads and replaces whole regular files, for programs other than PID 1. It follows symbolic links. So root
// must not use it below a directory that an agent can write; package fsutil is for that. It owns no goroutine.
package wholefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Open opens a regular file, and returns an error for any other type of file without waiting. A program that can write to the
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

// Read returns the content of a regular file. A file larger than most (in bytes) is an error.
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

// Replace replaces the file at path atomically with the given content and mode: it writes a temporary file in the same directory
// and renames it. The new content may be lost if the machine crashes, because it isn't synced.
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
		_ = os.Remove(f.Name()) // ignore this error: the first one is reported
	}
	return err
}
