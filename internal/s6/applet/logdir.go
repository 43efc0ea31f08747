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
	"hinit/internal/s6"
)

// finalMode is the mode of a log file that is complete: the owner's x bit says so. liveMode is that of one in use.
const (
	finalMode = 0o744
	liveMode  = 0o644
)

// logDir is a directory of s6-log: the file current, older ones whose names are labels of the time of their rotation, and a
// lock that one process holds. No name in it is followed when it is a symbolic link.
type logDir struct {
	rules   dirRules
	warn    func(string)
	dir     int // descriptors
	lock    int
	current int    // -1 while it couldn't be opened
	size    uint64 // of current, with what is in pending

	pending []byte    // what is to be written
	starts  []int     // where the lines of pending begin at which current is to be rotated first
	retryAt time.Time // when it is worth to try again; zero: now
}

// openLogDir opens a directory, which it makes when only the last component is missing, and takes its lock. Root gets there through
// no link that another could have made. others are those that
// this process has open already: one of them can be the same, as with s6, whose locks are those of a process. what says what
// failed, in the words of s6.
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
	if err := lockFile(l.lock); err != nil && !(errors.Is(err, unix.EBUSY) && slices.ContainsFunc(others, l.same)) {
		return nil, "unable to lock " + rules.path + "/lock", err
	}
	// The state of processors, which this s6-log has none of. Its file belongs to a new directory all the same.
	if !l.finished() {
		if fd, err := l.open("state", unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK); err == nil {
			_ = unix.Close(fd) // it was only to be there
		}
	}
	if err := l.begin(now); err != nil {
		return nil, "unable to open " + rules.path + "/current", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.current, &st); err == nil {
		l.size = uint64(st.Size)
	}
	return l, "", nil
}

// makeLogDir makes the directory at path when only the last component is missing. For root, see [fsutil.OpenForRoot].
func makeLogDir(path string) error {
	path = filepath.Clean(path)
	name := filepath.Base(path)
	if name == "." || name == ".." || name == "/" {
		return nil // it is there
	}
	parent, err := fsutil.OpenForRoot(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	if err := unix.Mkdirat(parent, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return nil
}

// openForRoot opens a directory for reading by the rules of [fsutil.OpenForRoot].
func openForRoot(path string) (int, error) {
	place, err := fsutil.OpenForRoot(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(place)
	return unix.Openat(place, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// others reports whether this is root in a directory where others can make names.
func others(dir int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		return false, err
	}
	return unix.Geteuid() == 0 && (st.Uid != 0 || st.Mode&0o022 != 0), nil
}

// errOtherNames says that a file is in other directories too, maybe in one of root's.
var errOtherNames = errors.New("it has other names (hard links)")

// same reports whether another directory is this one.
func (l *logDir) same(other *logDir) bool {
	var a, b unix.Stat_t
	return other != nil && unix.Fstat(l.lock, &a) == nil && unix.Fstat(other.lock, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// lockFile locks as s6 does, with a lock of the process, and so that two openings in one process exclude each other too.
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
	return unix.Openat(l.dir, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, liveMode)
}

// begin opens current. One that an earlier s6-log completed is gone on with; one that it didn't live to complete becomes an
// archive, whose name tells that.
func (l *logDir) begin(now time.Time) error {
	if !l.finished() {
		if err := l.archive(now, ".u"); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	fd, err := l.open("current", unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	if err = l.ours(fd); err == nil {
		err = unix.Fchmod(fd, liveMode)
	}
	if err != nil {
		_ = unix.Close(fd) // it could not be made ours
		return err
	}
	l.current = fd
	return nil
}

// ours refuses, as root in another's directory, a file that others can have put there: one that root has elsewhere.
func (l *logDir) ours(fd int) error {
	strange, err := others(l.dir)
	if err != nil || !strange {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
		return errOtherNames
	}
	return nil
}

// finished reports whether there is a current that is complete.
func (l *logDir) finished() bool {
	var st unix.Stat_t
	return unix.Fstatat(l.dir, "current", &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&0o100 != 0
}

// archive renames current to the label of now, or of the next nanosecond that is free, and removes archives that are too
// many.
func (l *logDir) archive(now time.Time, suffix string) error {
	for range 1000 {
		err := unix.Renameat2(l.dir, "current", l.dir, s6.TAI64N(now)+suffix, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // a file system without it
			err = unix.Renameat(l.dir, "current", l.dir, s6.TAI64N(now)+suffix)
		case errors.Is(err, unix.EEXIST):
			now = now.Add(1)
			continue
		}
		if err == nil {
			l.trim()
		}
		return err
	}
	return unix.EEXIST
}

// trim removes the oldest archives until no limit is exceeded. What can't be removed is left for the next time.
func (l *logDir) trim() {
	names, err := l.archives()
	if err != nil {
		l.warn("unable to list " + l.rules.path + ": " + strerror(err))
		return
	}
	slices.Sort(names)
	slices.Reverse(names)
	var total uint64
	for i, name := range names {
		var st unix.Stat_t
		if unix.Fstatat(l.dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			total += uint64(st.Size)
		}
		if uint64(i) < l.rules.archives && (l.rules.total == 0 || total <= l.rules.total) {
			continue
		}
		if err := unix.Unlinkat(l.dir, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			l.warn("unable to remove " + l.rules.path + "/" + name + ": " + strerror(err))
		}
	}
}

// archives returns the names of the archives, in no order. It reads the directory that is open, whatever its name is now.
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
	label, ok := strings.CutSuffix(name, ".s")
	if !ok {
		label, ok = strings.CutSuffix(name, ".u")
	}
	_, rest, label64 := s6.ParseTAI64N(label)
	return ok && label64 && rest == ""
}

// add takes a line in, newline and all, and marks where a file is full.
func (l *logDir) add(stamp, line []byte) {
	if l.size >= l.rules.size-l.rules.tolerance {
		l.cut()
	}
	l.pending = append(append(append(l.pending, stamp...), line...), '\n')
	l.size += uint64(len(stamp) + len(line) + 1)
}

// cut marks the end of pending as the place where the next file begins. A file that would be empty isn't one.
func (l *logDir) cut() {
	if l.size > 0 {
		l.starts, l.size = append(l.starts, len(l.pending)), 0
	}
}

// flush writes what is pending, and rotates where that is due. What fails is tried again after the time that the script
// gives; until then nothing is lost.
func (l *logDir) flush(now time.Time) {
	if now.Before(l.retryAt) {
		return
	}
	l.retryAt = time.Time{}
	for l.current < 0 || len(l.pending) > 0 || len(l.starts) > 0 {
		if l.current < 0 {
			if err := l.begin(now); err != nil {
				l.failed(now, "open", err)
				return
			}
		}
		upTo := len(l.pending)
		if len(l.starts) > 0 {
			upTo = l.starts[0]
		}
		n, err := unix.Write(l.current, l.pending[:upTo])
		if n > 0 {
			l.written(n)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			l.failed(now, "write to", err)
			return
		}
		if len(l.starts) > 0 && l.starts[0] == 0 {
			if err := l.rotate(now); err != nil {
				l.failed(now, "rotate", err)
				return
			}
			l.starts = l.starts[1:]
		}
	}
}

// written forgets the first n bytes of pending.
func (l *logDir) written(n int) {
	l.pending = append(l.pending[:0], l.pending[n:]...)
	for i := range l.starts {
		l.starts[i] -= n
	}
}

func (l *logDir) failed(now time.Time, verb string, err error) {
	l.retryAt = now.Add(time.Duration(l.rules.retry) * time.Millisecond)
	l.warn("unable to " + verb + " " + l.rules.path + "/current: " + strerror(err))
}

// rotate completes current and makes an archive of it. There is no current then.
func (l *logDir) rotate(now time.Time) error {
	if err := l.complete(); err != nil {
		return err
	}
	if err := l.archive(now, ".s"); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	_ = unix.Close(l.current) // its data has been written
	l.current = -1
	return nil
}

// complete marks current as complete.
func (l *logDir) complete() error {
	if err := unix.Fchmod(l.current, finalMode); err != nil {
		return err
	}
	if err := unix.Fsync(l.current); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// end writes what it can and completes current. It returns false when lines are lost.
func (l *logDir) end(now time.Time) bool {
	l.retryAt = time.Time{}
	l.flush(now)
	if l.current >= 0 {
		if err := l.complete(); err != nil {
			l.warn("unable to complete " + l.rules.path + "/current: " + strerror(err))
		}
	}
	return len(l.pending) == 0
}
