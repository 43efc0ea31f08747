package logrotate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/logrotate/archive"
	"hinit/logrotate/gzipped"
)

// Limits are the limits of one log. Unless a field says otherwise, 0 means no limit.
type Limits struct {
	// MaxSize is the size limit of a file in bytes: the file is rotated before a line that would exceed the limit. A single
	// line that is longer than the limit is alone in its file.
	MaxSize int64
	// Archives is the number of rotated files that are kept; 0 keeps none.
	Archives int
	// MaxAge is how long after its rotation an archive is kept. The age is checked only when lines are written.
	MaxAge time.Duration
	// Quota is the maximum size in bytes of all files of the log together. The current file counts as MaxSize, however small it is.
	// The oldest archives are removed first.
	Quota int64
	// MinFree is the number of bytes that must stay free on the file system for the agent's user.
	//
	// If, after a rotation, another file of MaxSize bytes would leave less, the oldest archive is removed, so that the log grows no
	// further. If less is free already, which is checked once a second when lines are written, the file isn't written, as on a full
	// disk. hinit then removes no archives, because another process that fills the disk would take their space, too.
	MinFree int64
	// Compress makes archives gzip files, a second or more after their rotation.
	Compress bool
	// Rate is the maximum number of lines per second. More lines are suppressed, and a line in both sinks says how many.
	Rate int
}

// defaultLimits are the limits of a log until [Log.SetLimits] is called.
var defaultLimits = Limits{MaxSize: 1_000_000, Archives: 10}

// SetLimits sets the limits of the log, at once. Logs that use the same file share the limits that were set last, except Rate.
func (l *Log) SetLimits(limits Limits) {
	l.limiter.rate.Store(int64(limits.Rate))
	if l.file != nil {
		l.file.limits.Store(&limits)
		l.file.requestPacking()
	}
}

// prune removes the oldest archives until the log is within its limits.
func (f *file) prune(now time.Time) error {
	limits := f.limits.Load()
	room := int64(-1)
	if limits.Quota > 0 {
		room = max(limits.Quota-limits.MaxSize, 0)
	}
	return f.archives.Prune(limits.Archives, room, limits.MaxAge, now)
}

// requestPacking asks for the compression of the archives, if Limits.Compress is set.
func (f *file) requestPacking() {
	if f.limits.Load().Compress {
		f.set.compressor.request(f)
	}
}

// checkFree returns an error if fewer than MinFree bytes are free on the file system.
func (f *file) checkFree() error {
	free, least := f.freeBytes()
	if free >= least {
		return nil
	}
	return fmt.Errorf("cannot write log file %q: only %d MB are free, and %d are to stay free", f.path, free/1_000_000, least/1_000_000)
}

// replaceOldest is called after a rotation. If the next file could leave fewer than MinFree bytes free, it removes the oldest
// archive, but never the only one.
func (f *file) replaceOldest() error {
	if free, least := f.freeBytes(); free >= least+f.limits.Load().MaxSize || f.archives.Len() < 2 {
		return nil
	}
	return f.archives.RemoveOldest()
}

// freeBytes returns how many bytes are free on the file system for the agent's user, and how many must stay free. If there is no
// limit, or the free space is unknown, free is the largest int64.
func (f *file) freeBytes() (free, least int64) {
	least = f.limits.Load().MinFree
	var st unix.Statfs_t
	if least <= 0 || unix.Fstatfs(f.fd, &st) != nil {
		return math.MaxInt64, least
	}
	return int64(st.Bavail) * int64(st.Bsize), least //nolint:unconvert // Bavail is 32 bits wide on some machines
}

const stampLen = archive.TimestampLen

// appendStamp appends the timestamp of a line that is written at t, with the two spaces at its end.
func appendStamp(b []byte, t time.Time) []byte {
	return t.Local().AppendFormat(b, archive.TimestampLayout+"  ")
}

// compressor collects the files whose archives are to be compressed. Once per retryPeriod it gives them to [Options].Pack, which
// skips archives younger than a retryPeriod. Any goroutine may call its methods.
type compressor struct {
	opts   Options
	ctx    context.Context    //nolint:containedctx // cancelled by end
	cancel context.CancelFunc // Cancels the compression and drops the queue; the field work waits for the goroutine.
	work   sync.WaitGroup     // Counts the goroutine that handles the queue.

	mu    sync.Mutex // No goroutine holds mu during I/O.
	queue []*file    // Files that wait for compression, each at most once.
	busy  bool       // Whether a goroutine is handling the queue.
}

// request queues f for the compression of its archives. It doesn't block. After cancel, it does nothing.
func (c *compressor) request(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opts.PackArchives == nil || c.ctx.Err() != nil || slices.Contains(c.queue, f) {
		return
	}
	c.queue = append(c.queue, f)
	if !c.busy {
		c.busy = true
		c.work.Go(guard.WrapFunc("compressing archives", c.run))
	}
}

// takeQueue empties the queue, and returns the files whose archives must still be compressed. If takeQueue returns no file, the
// calling goroutine must exit.
func (c *compressor) takeQueue() []*file {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := slices.DeleteFunc(c.queue, func(f *file) bool { return !f.limits.Load().Compress })
	c.queue, c.busy = nil, len(batch) > 0
	return batch
}

// run is the goroutine that handles the queue. It exits when the queue is empty.
func (c *compressor) run() {
	for pause.For(c.ctx, c.opts.period) {
		batch := c.takeQueue()
		if len(batch) == 0 {
			return
		}
		archives := make([]gzipped.Archives, len(batch))
		for i, f := range batch {
			// hinit writes no larger archive, and package reader refuses larger archives. Compressing such an archive would only delay
			// other archives.
			archives[i] = gzipped.Archives{Dir: f.archives.Dir, MaxSize: max(2*f.limits.Load().MaxSize, gzipped.DefaultMaxSize)}
		}
		results, err := c.opts.PackArchives(c.ctx, archives, c.opts.period)
		if c.ctx.Err() != nil {
			return
		}
		for i, f := range batch {
			of := err
			if err == nil && results[i].Error != "" {
				of = errors.New(results[i].Error)
			}
			f.recordPacked(of)
			if of == nil && results[i].CallAgain {
				f.requestPacking()
			}
		}
	}
}

// recordPacked warns when the compression of a file's archives fails after a success, and when it succeeds after a failure. err is
// nil after a success.
func (f *file) recordPacked(err error) {
	switch {
	case err == nil && f.packingFailed.Swap(false):
		f.set.opts.Warn(f.service, fmt.Sprintf("the archives of %q are compressed again", f.path))
	case err != nil && !f.packingFailed.Swap(true):
		f.set.opts.Warn(f.service, fmt.Sprintf("cannot compress the archives of %q: %v; they stay as they are for now", f.path, err))
	}
}
