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

	"hinit/internal/wholefile"
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
	return wholefile.Replace(path, bytes.NewReader(data), 0o644)
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
	f, err := wholefile.Open(p.Log(task), os.O_RDONLY, 0)
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
