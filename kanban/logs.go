package kanban

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func (c Config) rotateBytes() int64 {
	return cmp.Or(max(c.RotateBytes, 0), DefaultRotateBytes)
}

func (c Config) logBackups() int {
	if c.LogBackups == nil || *c.LogBackups < 0 {
		return DefaultLogBackups
	}
	return *c.LogBackups
}

// rotate puts a log that has grown too large aside, and makes the directory of one that isn't there.
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

// TailLog returns the end of a task's log: at most so many bytes, without a first line cut short. A limit of 0 is all of it.
func (p Paths) TailLog(task string, limit int64) ([]byte, error) {
	f, err := openRegular(p.Log(task))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if limit <= 0 || limit >= st.Size() {
		return io.ReadAll(f)
	}
	data := make([]byte, limit+1) // and the byte before, which may end a line
	n, err := f.ReadAt(data, st.Size()-limit-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if _, whole, found := strings.Cut(string(data[:n]), "\n"); found {
		return []byte(whole), nil
	}
	return data[1:n], nil
}

// Collected is what [Store.Collect] removed.
type Collected struct {
	Events int64 `json:"events"`
	Logs   int   `json:"logs"`
}

// Collect removes events of finished tasks and log files, as old as that and older.
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
		if failed != nil || !info.Mode().IsRegular() || !isLog(e.Name()) || !info.ModTime().Before(now.Add(-logs)) {
			continue
		}
		if os.Remove(filepath.Join(s.paths.Logs, e.Name())) == nil {
			c.Logs++
		}
	}
	return c, err
}

// isLog says whether a file is a worker's log or an old one of it.
func isLog(name string) bool {
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		if _, err := strconv.Atoi(name[i+1:]); err == nil {
			name = name[:i]
		}
	}
	return strings.HasSuffix(name, ".log")
}
