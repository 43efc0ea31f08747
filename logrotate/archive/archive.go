// Package archive names, lists and removes rotated log files, and defines the timestamp at the beginning of a log line.
// Package logrotate writes these files, and package reader reads them.
//
// An archive is named like the files of s6-log, after the time of its rotation: for example "@400000006b00e1dd1213c744.s".
// The suffix is ".u" if s6-log left it unfinished, and ".gz" follows if it is compressed. While an archive is being
// compressed, both forms exist and count as one archive. The order of the names is the order of age, even if the clock was
// set back.
//
// All functions may block on disk I/O. None starts a goroutine.
package archive

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/faultinject"
	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
)

// List is the list of one log's archives that package logrotate keeps in memory, so that a rotation need not read the directory.
// It has no lock: the caller must not call two methods at once. Its methods use paths, so the caller first takes on the agent's
// file-system identity (setfsuid(2)).
type List struct {
	Dir string // Path of the log directory.

	names []string // Names of the archives without the suffix PackedSuffix, oldest first.
	// Time of the last name that Add has chosen; the next name must be later.
	newest time.Time
}

// An agent can create any number of files with the names of archives, and other logs wait while hinit handles them. So there
// are limits. maxRemovedAtOnce is the maximum number of files that a call of Read or Prune removes, and of names that a call of
// Add tries. maxListedArchives is the maximum number of archives in a List. The configuration allows at most 10,000 archives for
// a log.
const maxRemovedAtOnce, maxListedArchives = 1000, 11_000

// Read reads the list from the directory. It also removes the incomplete files of interrupted compressions, at most
// maxRemovedAtOnce in one call. If the directory can't be read, the list is empty.
func (l *List) Read() error {
	names, err := Dir{Path: l.Dir, Actor: fsutil.ProcessActor()}.allNames()
	removed := 0
	for _, name := range names {
		if whole, ok := strings.CutSuffix(name, PackedSuffix+PartialSuffix); ok && isArchive(whole) && removed < maxRemovedAtOnce {
			_ = unix.Unlink(filepath.Join(l.Dir, name)) // The uncompressed archive still exists and is compressed later.
			removed++
		}
	}
	names = TrimPacked(archivesIn(names))
	l.names, l.newest = slices.Clone(names[:min(len(names), maxListedArchives)]), time.Time{}
	if len(names) > 0 {
		l.newest, _ = RotationTime(names[len(names)-1])
	}
	return err
}

// Add renames the file at path, within its directory, to the name of a new archive. It never reuses the name of an earlier
// archive. If the names that it tries are taken, it returns an error, and the next call tries other names.
func (l *List) Add(path string, now time.Time) error {
	name, err := "", error(unix.EEXIST)
	for tries := 0; errors.Is(err, unix.EEXIST) && tries < maxRemovedAtOnce; tries++ {
		l.newest = nextTime(l.newest, now)
		name = NameAt(l.newest)
		err = fsutil.RenameNoReplace(unix.AT_FDCWD, path, filepath.Join(l.Dir, name))
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: path, New: filepath.Join(l.Dir, name), Err: err}
	}
	l.names = append(l.names, name)
	return nil
}

// Prune removes the oldest archives until the log is within three limits. keep is the maximum number of archives, room their
// maximum total size in bytes, and age the maximum age of an archive. A negative room, and an age of 0, mean no limit. A call
// removes at most maxRemovedAtOnce archives, and the next call removes more.
func (l *List) Prune(keep int, room int64, age time.Duration, now time.Time) error {
	if room >= 0 {
		keep = min(keep, l.countThatFit(room))
	}
	for n := 0; n < maxRemovedAtOnce && (len(l.names) > keep || l.Expired(age, now)); n++ {
		if err := l.RemoveOldest(); err != nil {
			return err
		}
	}
	return nil
}

// Len returns the number of archives in the list.
func (l *List) Len() int { return len(l.names) }

// RemoveOldest removes the oldest archive, in both its compressed and its uncompressed form. A missing file isn't an error, and
// neither is a directory that an agent has put in its place. The list must not be empty.
func (l *List) RemoveOldest() error {
	for _, form := range FileNames(l.names[0]) {
		path := filepath.Join(l.Dir, form)
		err := faultinject.RunCall(faultinject.CallRemove, path, func() error { return unix.Unlink(path) })
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EISDIR) {
			return &os.PathError{Op: "remove archive", Path: path, Err: err}
		}
	}
	l.names = append(l.names[:0], l.names[1:]...)
	return nil
}

// countThatFit returns how many of the newest archives fit together into room bytes.
func (l *List) countThatFit(room int64) int {
	for i, name := range slices.Backward(l.names) {
		for _, form := range FileNames(name) {
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

// Expired reports whether the oldest archive is older than the limit age. An age of 0 means no limit.
func (l *List) Expired(age time.Duration, now time.Time) bool {
	if age <= 0 || len(l.names) == 0 {
		return false
	}
	t, ok := RotationTime(l.names[0])
	return ok && now.Sub(t) > age
}

// Dir reads the log directory at Path for a client or for the packer. Each method opens the directory again, because a
// process may have replaced it in the meantime. The methods refuse a symbolic link in place of the directory or of a file in
// it. They follow links in the path above the directory, with the permissions of Actor.
type Dir struct {
	Path  string
	Actor *fsutil.Actor // Identity with which files are opened; Do fails if it is nil.
}

// WithParent opens the parent of the log directory, and calls fn with it and with the name of the log directory in the parent.
func (d Dir) WithParent(fn func(parent *fsutil.Dir, name string) error) error {
	if d.Actor == nil {
		return fmt.Errorf("cannot open the log directory %q: no identity was given", d.Path)
	}
	// The path has no last element, as in "/", so pass the directory itself.
	dir, name := filepath.Split(filepath.Clean(d.Path))
	dir = cmp.Or(dir, ".")
	if name == ".." || name == "." || name == "" {
		dir, name = d.Path, ""
	}
	parent, err := fsutil.OpenDir(dir, d.Actor)
	if err != nil {
		return err
	}
	defer parent.Close()
	return fn(parent, name)
}

// Names returns the base names of the archives, oldest first. An archive that exists both compressed and uncompressed is listed
// once.
func (d Dir) Names() ([]string, error) {
	names, err := d.allNames()
	return archivesIn(names), err
}

// maxNames is the maximum number of entries that a single call reads from a log directory, because an agent can create any number
// of entries.
const maxNames = 64 << 10

// allNames returns the names of all entries of the directory, up to maxNames. It leaves out subdirectories: an agent can give
// one the name of an archive, and no function here can read or remove it.
func (d Dir) allNames() ([]string, error) {
	return d.List(func(kind fs.FileMode) bool { return !kind.IsDir() })
}

// List returns the names of at most maxNames entries of the directory. The function wanted selects entries by their type.
func (d Dir) List(wanted func(kind fs.FileMode) bool) (names []string, err error) {
	err = d.WithParent(func(parent *fsutil.Dir, name string) error {
		return parent.EachName(name, func(entry string, kind fs.FileMode) bool {
			if wanted(kind) {
				names = append(names, entry)
			}
			return len(names) < maxNames
		})
	})
	return names, err
}

const (
	// CurrentFile is the base name of the log file that is being written.
	CurrentFile = "current"
	// TimestampLayout is the time layout of a line's timestamp, which is in local time. Two spaces follow it.
	TimestampLayout = time.DateTime + ".000000000"
	// TimestampLen is the length of the timestamp and the two spaces.
	TimestampLen = len(TimestampLayout) + 2
)

const (
	// labelLen is the length of a TAI64N label in a name: "@" and 24 hexadecimal digits.
	labelLen = 1 + 24

	completeSuffix   = ".s" // Suffix of an archive.
	unfinishedSuffix = ".u" // Suffix of an archive that s6-log left unfinished.

	// PackedSuffix is the additional suffix of a compressed archive: NAME.s.gz.
	PackedSuffix = ".gz"
	// PartialSuffix is the additional suffix of a compressed archive that is still being written: NAME.s.gz.tmp.
	PartialSuffix = ".tmp"
)

// RotationTime returns the rotation time from the name of an archive. The name must not end with [PackedSuffix]. The second
// result is false if name is not the name of an archive.
func RotationTime(name string) (time.Time, bool) {
	if len(name) != labelLen+len(completeSuffix) || name[0] != '@' || name[labelLen:] != completeSuffix && name[labelLen:] != unfinishedSuffix {
		return time.Time{}, false
	}
	if strings.Trim(name[1:labelLen], "0123456789abcdef") != "" {
		return time.Time{}, false
	}
	// a file with an invalid label is no archive, because its name may sort after all archives
	t, _, ok := formats.ParseTAI64N(name)
	return t, ok
}

// NameAt returns the name of an archive that was rotated at t.
func NameAt(t time.Time) string { return formats.TAI64N(t) + completeSuffix }

// nextTime returns the time that names an archive rotated at now: usually now. If the clock was set back, it is just after last,
// the time of the newest archive. So names sort in the order of rotation.
func nextTime(last, now time.Time) time.Time {
	if !now.After(last) {
		return last.Add(time.Nanosecond)
	}
	return now
}

// isArchive reports whether name is the name of an archive, compressed or not.
func isArchive(name string) bool {
	_, ok := RotationTime(strings.TrimSuffix(name, PackedSuffix))
	return ok
}

// archivesIn returns the archives in the list names, oldest first, each archive once.
func archivesIn(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return !isArchive(name) })
	slices.Sort(names) // The compressed form of an archive sorts after the uncompressed form.
	return slices.CompactFunc(names, func(a, b string) bool {
		return strings.TrimSuffix(a, PackedSuffix) == strings.TrimSuffix(b, PackedSuffix)
	})
}

// TrimPacked removes the suffix [PackedSuffix] from each name, in place, so that a sort by name is a sort by time. It returns
// names.
func TrimPacked(names []string) []string {
	for i, name := range names {
		names[i] = strings.TrimSuffix(name, PackedSuffix)
	}
	return names
}

// FileNames returns the two possible file names of an archive, the uncompressed one first. Both exist while it is being
// compressed.
func FileNames(name string) [2]string { return [2]string{name, name + PackedSuffix} }
