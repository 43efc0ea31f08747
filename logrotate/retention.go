package logrotate

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// Limits bound one log. Zero MaxSize and Archives mean the values from [Options]; zero in other fields means no limit.
type Limits struct {
	// MaxSize and Archives mean the same as in [Options].
	MaxSize  int64
	Archives int
	// MaxAge limits the time since an archive's rotation. The check happens when a line is written.
	MaxAge time.Duration
	// Quota limits the bytes of all files of the log together. The current file counts as MaxSize. The oldest archives are
	// removed first.
	Quota int64
	// MinFree is the number of bytes of the file system that must be free for the agent's user, checked once a second. With fewer
	// free bytes the oldest archives are removed. If no archive is left, nothing is written, which is a fault like a full disk.
	MinFree int64
	// Compress compresses archives with gzip, a while after their rotation.
	Compress bool
	// Rate limits the lines per second. A line in both sinks reports the number of omitted lines.
	Rate int
}

// Limit sets the limits of l from now on. Logs with the same file share the limits that were set last, except for Rate.
func (l *Log) Limit(limits Limits) {
	l.limiter.rate.Store(int64(limits.Rate))
	if l.file != nil {
		limits = limits.within(l.set.opts)
		l.file.limits.Store(&limits)
		l.file.pack()
	}
}

// within replaces zero fields by the values of o.
func (l Limits) within(o Options) Limits {
	if l.MaxSize <= 0 {
		l.MaxSize = o.MaxSize
	}
	l.Archives = orDefault(l.Archives, o.Archives)
	return l
}

// prune removes the oldest archives if there are too many, if they are too old, or if they use too much space.
func (f *file) prune(now time.Time) error {
	limits := f.limits.Load()
	room := int64(-1)
	if limits.Quota > 0 {
		room = max(limits.Quota-limits.MaxSize, 0)
	}
	return f.archives.Prune(archive.Limits{Archives: limits.Archives, MaxAge: limits.MaxAge, Room: room}, now)
}

// pack requests the compression of the archives, if the limits say so.
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
	// hinit has not written a larger archive, or package reader could not read it. Its compression would only delay the others.
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

// checkFree returns an error if the file system has less than MinFree. It removes the oldest archives of this log first.
func (f *file) checkFree() error {
	least := f.limits.Load().MinFree
	if least <= 0 {
		return nil
	}
	free, ok := f.freeBytes()
	if !ok || free >= least {
		return nil // the free space is unknown, so go on: a full disk causes an error of the write
	}
	err := f.set.opts.Actor.Do(func() error {
		for !f.archives.Empty() && free < least {
			if err := f.archives.RemoveOldest(); err != nil {
				return err
			}
			free, _ = f.freeBytes()
		}
		return nil
	})
	if free >= least {
		return nil
	}
	if err != nil {
		f.recordError(err)
	}
	return fmt.Errorf("cannot write log file %q: only %d MB are free, and %d are to stay free", f.path, free/1_000_000, least/1_000_000)
}

// freeBytes returns the number of bytes of the file system that are free for the agent's user. ok is false if it is unknown.
func (f *file) freeBytes() (int64, bool) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(f.fd, &st); err != nil {
		return 0, false
	}
	return int64(st.Bavail) * st.Bsize, true
}
