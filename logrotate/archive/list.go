package archive

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
)

// List is the list of a log's archives that the writer of the log keeps. The caller guards it with a lock, and sets the
// file-system identity.
type List struct {
	Dir string // directory of the archives

	names  []string // without the suffix Packed, oldest first
	newest time.Time
}

// Limits say which archives [List.Prune] keeps.
type Limits struct {
	Archives int
	MaxAge   time.Duration // 0: any age
	Room     int64         // total size of all archives in bytes; negative: no limit
}

// Read reads the list from the directory. It also removes half-written compressed archives, which an interrupted compression has
// left. If the directory can't be read, the list is empty.
func (l *List) Read() error {
	names, err := Dir{Path: l.Dir, Actor: fsutil.Self()}.all()
	for _, name := range names {
		if whole, ok := strings.CutSuffix(name, Packed+Partial); ok && isArchive(whole) {
			_ = unix.Unlink(filepath.Join(l.Dir, name)) // the uncompressed archive still exists and is compressed later
		}
	}
	l.names, l.newest = Plain(archivesIn(names)), time.Time{}
	if len(l.names) > 0 {
		l.newest, _ = Time(l.names[len(l.names)-1])
	}
	return err
}

// Add renames the file at path, within its directory, to the name of a new archive. It chooses a name that no archive has or had.
func (l *List) Add(path string, now time.Time) error {
	for t := next(l.newest, now); ; t = next(t, now) {
		name := Name(t)
		to := filepath.Join(l.Dir, name)
		err := fsutil.RenameNew(unix.AT_FDCWD, path, to)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return &os.LinkError{Op: "rename", Old: path, New: to, Err: err}
		}
		l.names, l.newest = append(l.names, name), t
		return nil
	}
}

// Prune removes the oldest archives while there are too many, they are too old, or they take up too much space.
func (l *List) Prune(limits Limits, now time.Time) error {
	keep := limits.Archives
	if limits.Room >= 0 {
		keep = min(keep, l.affordable(limits.Room))
	}
	for len(l.names) > keep || l.Expired(limits.MaxAge, now) {
		if err := l.RemoveOldest(); err != nil {
			return err
		}
	}
	return nil
}

// Empty reports whether the list has no archive.
func (l *List) Empty() bool { return len(l.names) == 0 }

// RemoveOldest removes the oldest archive, both its compressed and its uncompressed form. A missing file is no error. The list
// must not be empty.
func (l *List) RemoveOldest() error {
	for _, form := range Forms(l.names[0]) {
		path := filepath.Join(l.Dir, form)
		err := faultinject.Before(faultinject.Remove, path)
		if err == nil {
			err = unix.Unlink(path)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "remove archive", Path: path, Err: err}
		}
	}
	l.names = append(l.names[:0], l.names[1:]...)
	return nil
}

// affordable returns how many archives, counted from the newest, fit into room bytes.
func (l *List) affordable(room int64) int {
	for i, name := range slices.Backward(l.names) {
		for _, form := range Forms(name) {
			var st unix.Stat_t
			if unix.Lstat(filepath.Join(l.Dir, form), &st) == nil {
				room -= st.Size
			}
		}
		if room < 0 {
			return len(l.names) - 1 - i
		}
	}
	return len(l.names)
}

// Expired reports whether the oldest archive is older than age. For age 0 it returns false.
func (l *List) Expired(age time.Duration, now time.Time) bool {
	if age <= 0 || l.Empty() {
		return false
	}
	t, ok := Time(l.names[0])
	return ok && now.Sub(t) > age
}
