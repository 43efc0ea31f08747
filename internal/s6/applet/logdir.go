package applet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/s6/formats"
	"hinit/internal/wholefile"
)

// Modes of a log file: currentMode while s6-log writes it, archivedMode when it is complete. The owner's x bit marks a complete
// file.
const (
	archivedMode = 0o744
	currentMode  = 0o644
)

// logDir is a log directory of s6-log: the file current, a lock file, and archives, which are rotated files with the time of
// their rotation as name. s6-log follows no symbolic links in it.
type logDir struct {
	rules   dirRules
	warn    func(string)
	dir     int // descriptor of the directory; lock and current are descriptors of files in it
	lock    int
	current int    // -1 if the file current can't be opened
	size    uint64 // bytes in current, with the pending output

	pending    []byte    // output that isn't written yet
	fileStarts []int     // offsets in pending at which new files begin
	retryAt    time.Time // time of the next attempt to write; zero: at once
}

// openLogDir opens and locks a log directory, and creates its last component if it is missing. For root, it follows only safe
// links, see [wholefile.OpenForRoot]. others are the directories that this process has locked; it may open such a directory
// again. After an error, what is the failed action in the words of s6.
func openLogDir(rules dirRules, now time.Time, warn func(string), others []*logDir) (l *logDir, what string, err error) {
	l = &logDir{rules: rules, warn: warn, dir: -1, lock: -1, current: -1}
	if err := makeLogDir(rules.path); err != nil {
		return nil, "unable to mkdir " + rules.path, err
	}
	l.dir, err = openForRoot(rules.path)
	if err != nil {
		return nil, "unable to open " + rules.path + "/lock", err
	}
	l.lock, err = l.open("lock", unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK)
	if err != nil {
		return nil, "unable to open " + rules.path + "/lock", err
	}
	if err := lockFile(l.lock); err != nil && !(errors.Is(err, unix.EBUSY) && slices.ContainsFunc(others, l.isSameDir)) {
		return nil, "unable to lock " + rules.path + "/lock", err
	}
	// Programs of s6-log that filter archives use the file state. hinit has no such programs, but makes this file in a new
	// directory.
	if !l.isComplete() {
		if fd, err := l.open("state", unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK); err == nil {
			_ = unix.Close(fd) // an empty file is enough
		}
	}
	if err := l.openCurrent(now); err != nil {
		return nil, "unable to open " + rules.path + "/current", err
	}
	if st, err := fsutil.Fstat(l.current); err == nil {
		l.size = uint64(st.Size)
	}
	return l, "", nil
}

// makeLogDir creates the last component of path if it is missing.
func makeLogDir(path string) error {
	path = filepath.Clean(path)
	name := filepath.Base(path)
	if name == "." || name == ".." || name == "/" {
		return nil // the directory exists
	}
	parent, err := wholefile.OpenForRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

func openForRoot(path string) (int, error) {
	place, err := wholefile.OpenForRoot(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(place)
	return unix.Openat(place, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// othersCanCreate reports whether this process is root and others can create files in the directory.
func othersCanCreate(dir int) (bool, error) {
	st, err := fsutil.Fstat(dir)
	return unix.Geteuid() == 0 && (st.Uid != 0 || st.Mode&0o022 != 0), err
}

var errHardLinks = errors.New("it has other names (hard links)")

func (l *logDir) isSameDir(other *logDir) bool {
	a, err1 := fsutil.Fstat(l.lock)
	b, err2 := fsutil.Fstat(other.lock)
	return err1 == nil && err2 == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// lockFile takes two locks, and returns EBUSY if another process holds one. The first is the lock of s6, which belongs to the
// process. The second belongs to the open file, so that the same process can't take it twice.
func lockFile(fd int) error {
	whole := unix.Flock_t{Type: unix.F_WRLCK}
	err := unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &whole)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return unix.EBUSY
	}
	return err
}

func (l *logDir) open(name string, flags int) (int, error) {
	return unix.Openat(l.dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, currentMode)
}

// openCurrent opens the file current. If the last s6-log has completed this file, new lines are appended. After a kill of
// s6-log, openCurrent archives the file with the suffix ".u" and makes a new one.
func (l *logDir) openCurrent(now time.Time) error {
	if !l.isComplete() {
		if err := l.archive(now, ".u"); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	fd, err := l.open("current", unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	if err = l.refuseLinks(fd); err == nil {
		err = unix.Fchmod(fd, currentMode)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	l.current = fd
	return nil
}

// refuseLinks returns an error for a file with several hard links, if this process is root and others can create files in the
// directory. Another user may have linked a file from elsewhere.
func (l *logDir) refuseLinks(fd int) error {
	strange, err := othersCanCreate(l.dir)
	if err != nil || !strange {
		return err
	}
	st, err := fsutil.Fstat(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
		return errHardLinks
	}
	return err
}

func (l *logDir) isComplete() bool {
	var st unix.Stat_t
	return unix.Fstatat(l.dir, "current", &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&0o100 != 0
}

// archive renames current to the TAI64N label of now, or to the next free label. Then it removes archives beyond the limits.
func (l *logDir) archive(now time.Time, suffix string) error {
	for range 1000 {
		err := fsutil.RenameNoReplace(l.dir, "current", formats.TAI64N(now)+suffix)
		if errors.Is(err, unix.EEXIST) {
			now = now.Add(1)
			continue
		}
		if err == nil {
			l.removeOldest()
		}
		return err
	}
	return unix.EEXIST
}

func (l *logDir) removeOldest() {
	names, err := l.archives()
	if err != nil {
		l.warn("unable to list " + l.rules.path + ": " + strerror(err))
		return
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(b, a) })
	var total uint64
	for i, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(l.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			total += uint64(st.Size)
		}
		if uint64(i) < l.rules.maxArchives && (l.rules.maxArchiveBytes == 0 || total <= l.rules.maxArchiveBytes) {
			continue
		}
		if err := unix.Unlinkat(l.dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			l.warn("unable to remove " + l.rules.path + "/" + name + ": " + strerror(err))
		}
	}
}

func (l *logDir) archives() ([]string, error) {
	fd, err := l.open(".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(fd), l.rules.path)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return slices.DeleteFunc(names, func(name string) bool { return !isArchive(name) }), err
}

func isArchive(name string) bool {
	_, suffix, ok := formats.ParseTAI64N(name)
	return ok && (suffix == ".s" || suffix == ".u")
}

// appendLine appends a line to the pending output. If the file is full, it begins a new file with this line.
func (l *logDir) appendLine(stamp, line []byte) {
	if l.size >= l.rules.rotateSize-l.rules.tolerance {
		l.startNewFile()
	}
	l.pending = append(append(append(l.pending, stamp...), line...), '\n')
	l.size += uint64(len(stamp) + len(line) + 1)
}

// startNewFile begins a new file at the end of the pending output, unless the previous file would be empty. The next flush
// rotates the files.
func (l *logDir) startNewFile() {
	if l.size > 0 {
		l.fileStarts, l.size = append(l.fileStarts, len(l.pending)), 0
	}
}

// flush writes the pending output and rotates files. After an error it keeps the output and tries again after the time
// rules.retry.
func (l *logDir) flush(now time.Time) {
	if now.Before(l.retryAt) {
		return
	}
	l.retryAt = time.Time{}
	for l.current < 0 || len(l.pending) > 0 || len(l.fileStarts) > 0 {
		if l.current < 0 {
			if err := l.openCurrent(now); err != nil {
				l.recordFailure(now, "open", err)
				return
			}
		}
		upTo := len(l.pending)
		if len(l.fileStarts) > 0 {
			upTo = l.fileStarts[0]
		}
		n, err := unix.Write(l.current, l.pending[:upTo])
		if n > 0 {
			l.dropWritten(n)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.recordFailure(now, "write to", err)
			return
		}
		if len(l.fileStarts) > 0 && l.fileStarts[0] == 0 {
			if err := l.rotate(now); err != nil {
				l.recordFailure(now, "rotate", err)
				return
			}
			l.fileStarts = l.fileStarts[1:]
		}
	}
}

func (l *logDir) dropWritten(n int) {
	l.pending = append(l.pending[:0], l.pending[n:]...)
	for i := range l.fileStarts {
		l.fileStarts[i] -= n
	}
}

func (l *logDir) recordFailure(now time.Time, verb string, err error) {
	l.retryAt = now.Add(time.Duration(l.rules.retryMilliseconds) * time.Millisecond)
	l.warn("unable to " + verb + " " + l.rules.path + "/current: " + strerror(err))
}

// rotate marks current as complete and archives it, without opening a new file.
func (l *logDir) rotate(now time.Time) error {
	if err := l.markComplete(); err != nil {
		return err
	}
	if err := l.archive(now, ".s"); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	_ = unix.Close(l.current)
	l.current = -1
	return nil
}

func (l *logDir) markComplete() error {
	if err := unix.Fchmod(l.current, archivedMode); err != nil {
		return err
	}
	if err := unix.Fsync(l.current); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func (l *logDir) finish(now time.Time) bool {
	l.retryAt = time.Time{}
	l.flush(now)
	if l.current >= 0 {
		if err := l.markComplete(); err != nil {
			l.warn("unable to complete " + l.rules.path + "/current: " + strerror(err))
		}
	}
	return len(l.pending) == 0
}
