package logrotate

import (
	"fmt"
	"path/filepath"
	"slices"
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
	// Quota is how many bytes all files of the log may have together, with room for a whole current file. The oldest archives go
	// first.
	Quota int64
	// MinFree is how many bytes of the file system must be free for the agent's user. With fewer the oldest archives are removed;
	// when none is left nothing is written, which is a fault like a full disk. It is looked at once a second.
	MinFree int64
	// Compress compresses archives (gzip), a while after their rotation.
	Compress bool
	// Rate is how many lines a second are taken. A line in both sinks says how many others there were.
	Rate int
}

// Limit sets the limits of l from now on. Logs that share a file share the limits that were set last, except for the rate.
func (l *Log) Limit(limits Limits) {
	l.limiter.rate.Store(int64(limits.Rate))
	if l.file != nil {
		limits = limits.within(l.set.opts)
		l.file.limits.Store(&limits)
		if limits.Compress {
			l.set.compressor.request(l.file)
		}
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
	for len(f.names) > keep || f.expired(limits.MaxAge, now) {
		if err := f.removeOldest(dir); err != nil {
			return err
		}
	}
	return nil
}

func (f *file) removeOldest(dir string) error {
	if err := removeArchive(dir, f.names[0]); err != nil {
		return err
	}
	f.names = append(f.names[:0], f.names[1:]...)
	return nil
}

// affordable is how many of the newest archives have no more than room bytes together.
func (f *file) affordable(dir string, room int64) int {
	for i, name := range slices.Backward(f.names) {
		if room -= archiveSize(dir, name); room < 0 {
			return len(f.names) - 1 - i
		}
	}
	return len(f.names)
}

// expired reports whether the oldest archive is older than age; 0 is never.
func (f *file) expired(age time.Duration, now time.Time) bool {
	if age <= 0 || len(f.names) == 0 {
		return false
	}
	t, ok := archiveTime(f.names[0])
	return ok && now.Sub(t) > age
}

// spare says whether the file system has as much free as it must have. Before it says no, the oldest archives of this log go.
func (f *file) spare() error {
	least := f.limits.Load().MinFree
	if least <= 0 {
		return nil
	}
	free, ok := f.free()
	if !ok || free >= least {
		return nil // what can't be asked isn't wrong; a full disk will show by itself
	}
	err := f.set.opts.Actor.Do(func() error {
		dir, _ := filepath.Split(f.path)
		for len(f.names) > 0 && free < least {
			if err := f.removeOldest(dir); err != nil {
				return err
			}
			free, _ = f.free()
		}
		return nil
	})
	if free >= least {
		return nil
	}
	if err != nil {
		f.note(err)
	}
	return fmt.Errorf("cannot write log file %q: only %d MB are free, and %d are to stay free", f.path, free/1_000_000, least/1_000_000)
}

// free is how many bytes of the file system are free for the agent's user.
func (f *file) free() (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
