package probe

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// diskCall runs a part of a check that may wait for a disk. While an earlier call still waits, the check fails.
type diskCall struct {
	waits   atomic.Bool
	timeout time.Duration
}

func (p *diskCall) runCall(deadline time.Time, call func() (good bool, answer string)) (good bool, answer string) {
	if p.waits.Swap(true) {
		return false, "an earlier check still waits for the disk"
	}
	type result struct {
		good   bool
		answer string
	}
	came := make(chan result, 1)
	guard.Go("a check", func() {
		defer p.waits.Store(false)
		good, answer := call()
		came <- result{good, answer}
	})
	select {
	case r := <-came:
		return r.good, r.answer
	case <-time.After(time.Until(deadline)):
		return false, "no answer within " + p.timeout.String()
	}
}

// unixCheck checks whether it can connect to a Unix socket, as the service's user.
type unixCheck struct {
	diskCall
	path  string
	actor *fsutil.Actor
}

func (u *unixCheck) check(deadline time.Time) (good bool, answer string) {
	return u.runCall(deadline, func() (bool, string) {
		d, err := fsutil.OpenNoLink(filepath.Dir(u.path), u.actor)
		if err != nil {
			return false, shortFileError(err)
		}
		defer d.Close()
		fd, err := d.Connect(filepath.Base(u.path))
		if err != nil {
			return false, shortFileError(err)
		}
		unix.Close(fd)
		return true, "it takes connections"
	})
}

// fileCheck checks, as the service's user, whether a file exists and was written recently enough.
type fileCheck struct {
	diskCall
	path    string
	fresher time.Duration
	actor   *fsutil.Actor
}

func (f *fileCheck) check(deadline time.Time) (good bool, answer string) {
	return f.runCall(deadline, func() (bool, string) {
		d, err := fsutil.OpenNoLink(filepath.Dir(f.path), f.actor)
		if err != nil {
			return false, shortFileError(err)
		}
		defer d.Close()
		info, err := d.Lstat(filepath.Base(f.path))
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
