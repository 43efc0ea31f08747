package kanban

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock is a file lock held by this process. The kernel lets go of it when the process dies.
type Lock struct{ file *os.File }

// TryLock takes the lock of a file without waiting. False: somebody else holds it. An error means that there can't be a lock.
//
// It takes both kinds of lock that the kernel has, flock and the record lock of the whole file. They don't exclude each other,
// and the other writers of the board may use either.
func TryLock(path string) (l *Lock, held bool, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, false, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	}
	if err == nil {
		return &Lock{f}, true, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES) {
		return nil, false, nil
	}
	return nil, false, &os.PathError{Op: "lock", Path: path, Err: err}
}

// on says whether the locked file is still the one at its path: who may write the directory may put another one there.
func (l *Lock) on(path string) bool { return isAt(l.file, path) }

// Release lets go of the lock. Closing the file would not do while a child that is being started has a copy of the descriptor.
func (l *Lock) Release() {
	_ = unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}
