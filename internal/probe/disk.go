package probe

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
)

// diskCall runs a part of a check that may wait for a disk. While an earlier call still waits, the check fails.
type diskCall struct {
	waits   atomic.Bool
	timeout time.Duration
}

func (p *diskCall) runCall(deadline time.Time, call func() (good bool, answer string)) (bool, string) {
	if p.waits.Swap(true) {
		return false, "an earlier check still waits for the disk"
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	var good bool
	var answer string
	if blocking.Wait(ctx, "a check", func() error {
		defer p.waits.Store(false)
		good, answer = call()
		return nil
	}) != nil {
		return false, "no answer within " + p.timeout.String()
	}
	return good, answer
}

// pathCheck runs a part of a check that uses a path as the service's user.
type pathCheck struct {
	diskCall
	path  string
	actor *fsutil.Actor
}

// runIn opens the directory of the path, and calls the function call with it and the last element of the path.
func (p *pathCheck) runIn(deadline time.Time, call func(d *fsutil.Dir, name string) (good bool, answer string)) (bool, string) {
	return p.runCall(deadline, func() (bool, string) {
		d, err := fsutil.OpenNoLink(filepath.Dir(p.path), p.actor)
		if err != nil {
			return false, shortFileError(err)
		}
		defer d.Close()
		return call(d, filepath.Base(p.path))
	})
}

// unixCheck checks whether it can connect to a Unix socket.
type unixCheck struct{ pathCheck }

func (u *unixCheck) check(deadline time.Time) (good bool, answer string) {
	return u.runIn(deadline, func(d *fsutil.Dir, name string) (bool, string) {
		fd, err := d.Connect(name)
		if err != nil {
			return false, shortFileError(err)
		}
		unix.Close(fd)
		return true, "it takes connections"
	})
}

// fileCheck checks whether a file exists and was written recently enough.
type fileCheck struct {
	pathCheck
	fresher time.Duration
}

func (f *fileCheck) check(deadline time.Time) (good bool, answer string) {
	return f.runIn(deadline, func(d *fsutil.Dir, name string) (bool, string) {
		info, err := d.Lstat(name)
		switch {
		case err != nil:
			return false, shortFileError(err)
		case info.Mode()&fs.ModeSymlink != 0:
			return false, "it is a symbolic link"
		case f.fresher > 0 && time.Since(info.ModTime()) > f.fresher:
			return false, "it was not written for more than " + f.fresher.String()
		}
		return true, "it is there"
	})
}

// shortFileError describes a file error in a few words. It leaves out the path, which the reader knows from the configuration.
func shortFileError(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "it does not exist"
	case errors.Is(err, fsutil.ErrSymlink):
		return "a symbolic link is on the way"
	case errors.Is(err, unix.ENOTSOCK):
		return "it is not a socket"
	}
	if _, ok := errors.AsType[unix.Errno](err); ok {
		return shortError(err, 0)
	}
	return err.Error()
}
