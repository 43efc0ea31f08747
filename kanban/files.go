package kanban

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is a file lock that this process holds. The kernel releases it when the process dies.
type Lock struct{ file *os.File }

// TryLock takes the lock of a file without waiting. held is false if another process holds it. An error means that the file can't be
// locked.
//
// It takes both kinds of lock that the kernel has, flock and the record lock of the whole file. They don't exclude each other, and
// the other writers of the board may use either.
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

// Release releases the lock. To close the file is not enough while a child that is being started has a copy of the descriptor.
func (l *Lock) Release() {
	_ = unix.FcntlFlock(l.file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_UNLCK})
	_ = unix.Flock(int(l.file.Fd()), unix.LOCK_UN)
	_ = l.file.Close()
}

// mostRead is the size of the largest file of a board or profile that is read as a whole.
const mostRead = 16 << 20

// openRegular opens a regular file for reading. Any program that can write to the directory can put a FIFO or a device there, which
// would block or never end.
func openRegular(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.Join(err, errors.New("it is no regular file"))}
	}
	return f, nil
}

// readRegular reads a regular file. A file with more than most bytes is an error.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := openRegular(path)
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

// isAt reports whether an open file is still the file at a path. A program that may write to the directory may have replaced it.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	there, failed := os.Stat(path)
	return err == nil && failed == nil && os.SameFile(open, there)
}

// writeWhole replaces a file atomically, and makes its directory.
func writeWhole(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replace(path, bytes.NewReader(data), 0o644)
}

// replace replaces a file by content atomically.
func replace(path string, content io.Reader, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Chmod(mode), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the first error is the one to report
	}
	return err
}

func (c Config) rotateBytes() int64 {
	return cmp.Or(max(c.RotateBytes, 0), DefaultRotateBytes)
}

func (c Config) logBackups() int {
	return max(*cmp.Or(c.LogBackups, new(DefaultLogBackups)), 0)
}

// rotate renames a log that has grown too large, and makes the directory of the log.
func rotate(log string, size int64, backups int) error {
	if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
		return err
	}
	st, err := os.Stat(log)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size() <= size {
		return nil
	}
	if err != nil {
		return err
	}
	if backups == 0 {
		return os.Remove(log)
	}
	for n := backups - 1; n >= 1; n-- {
		err := os.Rename(fmt.Sprintf("%s.%d", log, n), fmt.Sprintf("%s.%d", log, n+1))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.Rename(log, log+".1")
}

// TailLog returns the end of a task's log: at most limit bytes, without an incomplete first line. A limit of 0 means the whole log.
func (p Paths) TailLog(task string, limit int64) ([]byte, error) {
	f, err := openRegular(p.Log(task))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || limit <= 0 || limit >= st.Size() {
		data, failed := io.ReadAll(f)
		return data, errors.Join(err, failed)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, st.Size()-limit-1, limit+1)) // also the byte before, which may end a line
	if _, whole, found := bytes.Cut(data, []byte("\n")); found || err != nil {
		return whole, err
	}
	return data[min(1, len(data)):], nil
}

// Collected counts what [Store.Collect] removed.
type Collected struct {
	Events int64 `json:"events"`
	Logs   int   `json:"logs"`
}

// Collect removes events of finished tasks, and log files, that have at least the given ages.
func (s *Store) Collect(ctx context.Context, now time.Time, events, logs time.Duration) (c Collected, err error) {
	err = s.write(ctx, now, func(t *tx) error {
		c.Events = t.exec(`DELETE FROM task_events WHERE created_at < ?
			AND task_id IN (SELECT id FROM tasks WHERE status IN ('done', 'archived'))`, now.Add(-events).Unix())
		return nil
	})
	if err != nil {
		return c, err
	}
	entries, err := os.ReadDir(s.paths.Logs)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	for _, e := range entries {
		info, failed := e.Info()
		if failed != nil || !info.Mode().IsRegular() || !logNames.MatchString(e.Name()) || !info.ModTime().Before(now.Add(-logs)) {
			continue
		}
		if os.Remove(filepath.Join(s.paths.Logs, e.Name())) == nil {
			c.Logs++
		}
	}
	return c, err
}

// logNames matches the names of workers' logs and of their rotated files.
var logNames = regexp.MustCompile(`\.log(\.\d+)?$`)
