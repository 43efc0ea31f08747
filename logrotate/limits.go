package logrotate

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bound one log. The zero value of each field means that of the [Set]: MaxSize and Archives as in [Options], the others
// without a limit.
type Limits struct {
	// MaxSize and Archives are as in [Options].
	MaxSize  int64
	Archives int
	// MaxAge is how old an archive gets, by the time of its rotation. It is looked at when a line is written.
	MaxAge time.Duration
	// Quota is how many bytes all files of the log may have together: as many of the oldest archives are removed as it takes to
	// leave room for a whole current file.
	Quota int64
	// MinFree is how many bytes of the file system must be free for the agent's user. With fewer nothing is written: that is a
	// fault like a full disk. It is looked at once a second.
	MinFree int64
	// Rate is how many lines a second are taken. Of what is more than that neither sink gets anything but a line that says how
	// many there were, before the next line that is taken.
	Rate int
}

// Limit sets the limits of l from now on. Logs that share a file share the limits that were set last, except for the rate.
func (l *Log) Limit(limits Limits) {
	l.limiter.rate.Store(int64(limits.Rate))
	if l.file != nil {
		limits = limits.within(l.set.opts)
		l.file.limits.Store(&limits)
	}
}

// within fills in what o says.
func (l Limits) within(o Options) Limits {
	if l.MaxSize <= 0 {
		l.MaxSize = o.MaxSize
	}
	switch {
	case l.Archives == 0:
		l.Archives = o.Archives
	case l.Archives < 0:
		l.Archives = 0
	}
	return l
}

// prune removes the oldest archives while there are too many, or they are too old or too large together.
func (f *file) prune(dir string, now time.Time) error {
	limits := f.limits.Load()
	keep := limits.Archives
	if limits.Quota > 0 {
		keep = min(keep, f.affordable(dir, limits.Quota-limits.MaxSize))
	}
	for len(f.archives) > keep || f.expired(limits.MaxAge, now) {
		path := dir + f.archives[0]
		if err := unix.Unlink(path); err != nil && !errors.Is(err, unix.ENOENT) {
			return &os.PathError{Op: "remove archive", Path: path, Err: err}
		}
		f.archives = append(f.archives[:0], f.archives[1:]...)
	}
	return nil
}

// affordable is how many of the newest archives have no more than room bytes together.
func (f *file) affordable(dir string, room int64) int {
	for i, name := range slices.Backward(f.archives) {
		var st unix.Stat_t
		if err := unix.Lstat(dir+name, &st); err == nil {
			room -= st.Size
		}
		if room < 0 {
			return len(f.archives) - 1 - i
		}
	}
	return len(f.archives)
}

// expired reports whether the oldest archive is older than age; 0 is never.
func (f *file) expired(age time.Duration, now time.Time) bool {
	if age <= 0 || len(f.archives) == 0 {
		return false
	}
	name := f.archives[0]
	base := f.path[strings.LastIndexByte(f.path, '/')+1:]
	t, ok := archiveTime(name, base)
	if !ok {
		t, ok = s6Time(name)
	}
	return ok && now.Sub(t) > age
}

// s6Time is the time in the name of an archive that s6-log left: a TAI64N label (contract of s6-log, section 7).
func s6Time(name string) (time.Time, bool) {
	if len(name) < 17 || name[0] != '@' {
		return time.Time{}, false
	}
	label, err := strconv.ParseUint(name[1:17], 16, 64)
	const unixZero = 1<<62 + 10
	if err != nil || label < unixZero || label > math.MaxInt64 {
		return time.Time{}, false
	}
	return time.Unix(int64(label-unixZero), 0), true
}

// spare says whether the file system has as much free as it must have.
func (f *file) spare() error {
	least := f.limits.Load().MinFree
	if least <= 0 {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil {
		return nil // it can't be asked; a full disk will show by itself
	}
	if free := int64(st.Bavail) * st.Bsize; free < least {
		return fmt.Errorf("cannot write log file %q: only %d MB are free, and %d are to stay free", f.path, free/1_000_000, least/1_000_000)
	}
	return nil
}
