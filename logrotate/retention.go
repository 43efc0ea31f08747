package logrotate

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// Limits bound one log. The zero value of a field means the value of the [Set]: MaxSize and Archives as in [Options], the others
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
		l.file.pack()
	}
}

// within fills in what o says.
func (l Limits) within(o Options) Limits {
	if l.MaxSize <= 0 {
		l.MaxSize = o.MaxSize
	}
	l.Archives = count(l.Archives, o.Archives)
	return l
}

// prune removes the oldest archives while there are too many, or they are too old or too large together.
func (f *file) prune(now time.Time) error {
	limits := f.limits.Load()
	room := int64(-1)
	if limits.Quota > 0 {
		room = max(limits.Quota-limits.MaxSize, 0)
	}
	return f.archives.Prune(archive.Limits{Archives: limits.Archives, MaxAge: limits.MaxAge, Room: room}, now)
}

// pack has the archives compressed, if that is wanted.
func (f *file) pack() {
	if f.limits.Load().Compress && f.set.opts.Pack != nil {
		f.set.compressor.Request(f)
	}
}

// Packing implements [gzipped.Log].
func (f *file) Packing() (dir string, most int64) {
	limits := f.limits.Load()
	if !limits.Compress {
		return "", 0
	}
	// A larger archive is not hinit's, or could not be read when compressed (see package reader), and all others would wait for it.
	return f.archives.Dir, max(2*limits.MaxSize, gzipped.Most)
}

// Packed implements [gzipped.Log].
func (f *file) Packed(err error) {
	switch {
	case err == nil && f.unpackable.Swap(false):
		f.set.opts.Warn(f.service, fmt.Sprintf("the archives of %q are compressed again", f.path))
	case err != nil && !f.unpackable.Swap(true):
		f.set.opts.Warn(f.service, fmt.Sprintf("cannot compress the archives of %q: %v; they stay as they are for now", f.path, err))
	}
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
		for !f.archives.Empty() && free < least {
			if err := f.archives.RemoveOldest(); err != nil {
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
