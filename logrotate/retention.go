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

// Limits are the limits of one log. Zero MaxSize and Archives mean the values from [Options]; zero in any other field means no
// limit.
type Limits struct {
	// MaxSize and Archives mean the same as in [Options].
	MaxSize  int64
	Archives int
	// MaxAge is the maximum age of an archive, counted from its rotation. The age is checked when lines are written.
	MaxAge time.Duration
	// Quota is the largest total size, in bytes, of all files of the log. The current file counts as MaxSize. The oldest archives
	// are removed first.
	Quota int64
	// MinFree is the number of bytes that must stay free on the file system for the agent's user. If a rotation finds that
	// another file of MaxSize bytes would leave fewer, it removes the oldest archive, so the log grows no further. The free
	// space is checked at most once a second, when lines are written. If fewer bytes are free, the file is not written, as if
	// the disk were full. No more archives are removed for it: someone else who fills the disk would take that space, too.
	MinFree int64
	// Compress compresses archives with gzip, a second or more after their rotation.
	Compress bool
	// Rate is the largest number of lines per second. Lines beyond it are omitted, and a line in both sinks states their number.
	Rate int
}

// Limit sets the limits of the log. They take effect immediately. If several logs use the same file, they share the limits that
// were set last, except for Rate.
func (l *Log) Limit(limits Limits) {
	l.limiter.rate.Store(int64(limits.Rate))
	if l.file != nil {
		limits = limits.within(l.set.opts)
		l.file.limits.Store(&limits)
		l.file.pack()
	}
}

// within returns the limits l, in which the values from o replace a MaxSize or Archives of zero.
func (l Limits) within(o Options) Limits {
	if l.MaxSize <= 0 {
		l.MaxSize = o.MaxSize
	}
	l.Archives = orDefault(l.Archives, o.Archives)
	return l
}

// prune removes the oldest archives while there are too many, they are too old, or they use too much space.
func (f *file) prune(now time.Time) error {
	limits := f.limits.Load()
	room := int64(-1)
	if limits.Quota > 0 {
		room = max(limits.Quota-limits.MaxSize, 0)
	}
	return f.archives.Prune(limits.Archives, room, limits.MaxAge, now)
}

// pack requests the compression of the archives, if Limits.Compress is set.
func (f *file) pack() {
	if f.limits.Load().Compress {
		f.set.compressor.request(f)
	}
}

// checkFree returns an error if fewer than MinFree bytes are free.
func (f *file) checkFree() error {
	free, least := f.freeBytes()
	if free >= least {
		return nil
	}
	return fmt.Errorf("cannot write log file %q: only %d MB are free, and %d are to stay free", f.path, free/1_000_000, least/1_000_000)
}

// replaceOldest removes the oldest archive after a rotation if the next file could leave fewer than MinFree bytes free. It keeps the
// newest archive.
func (f *file) replaceOldest() error {
	if free, least := f.freeBytes(); free >= least+f.limits.Load().MaxSize || f.archives.Len() < 2 {
		return nil
	}
	return f.archives.RemoveOldest()
}

// freeBytes returns the number of bytes that are free on the file system for the agent's user, and the number that must stay free.
// Without a limit, and if the free space is unknown, the first number is the largest one.
func (f *file) freeBytes() (free, least int64) {
	least = f.limits.Load().MinFree
	var st unix.Statfs_t
	if least <= 0 || unix.Fstatfs(f.fd, &st) != nil {
		return math.MaxInt64, least
	}
	return int64(st.Bavail) * int64(st.Bsize), least //nolint:unconvert // 32 bits wide on some machines
}

const stampLen = archive.StampLen

// stamp formats the timestamps of lines. It formats date and time once per second, and the nanoseconds for each batch of lines.
type stamp struct {
	second int64
	text   [stampLen]byte
}

// format returns the timestamp of the time t.
func (s *stamp) format(t time.Time) [stampLen]byte {
	if sec := t.Unix(); sec != s.second || s.text[0] == 0 {
		s.second = sec
		t.Local().AppendFormat(s.text[:0], time.DateTime)
		s.text[len(time.DateTime)] = '.'
		s.text[stampLen-2], s.text[stampLen-1] = ' ', ' '
	}
	ns := t.Nanosecond()
	for i := len(archive.StampLayout) - 1; i > len(time.DateTime); i-- {
		s.text[i] = byte('0' + ns%10)
		ns /= 10
	}
	return s.text
}

// compressor collects files whose archives must be compressed. Once per period it passes them to [Options].Pack, which compresses
// only archives older than the period. Its methods may be called from any goroutine.
type compressor struct {
	opts Options
	ctx  context.Context //nolint:containedctx // ends when end is called
	stop context.CancelFunc
	work sync.WaitGroup // the goroutine that handles the queue; after a call of end, it ends soon

	mu    sync.Mutex // never held across I/O
	queue []*file    // each file at most once
	busy  bool       // a goroutine is handling the queue
}

func newCompressor(o Options) *compressor {
	c := &compressor{opts: o}
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

// request queues the file f for the compression of its archives. It doesn't block. After a call of end it does nothing.
func (c *compressor) request(f *file) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.opts.Pack == nil || c.ctx.Err() != nil || slices.Contains(c.queue, f) {
		return
	}
	c.queue = append(c.queue, f)
	if !c.busy {
		c.busy = true
		c.work.Go(guard.Func("compressing archives", c.run))
	}
}

// end cancels the compression and all requests. It doesn't wait for the end of the compression.
func (c *compressor) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
}

// take returns the queued files and empties the queue.
func (c *compressor) take() []*file {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.queue
	c.queue, c.busy = nil, len(batch) > 0
	return batch
}

func (c *compressor) run() {
	for pause.For(c.ctx, c.opts.period) {
		batch := c.take()
		if len(batch) == 0 {
			return
		}
		batch = slices.DeleteFunc(batch, func(f *file) bool { return !f.limits.Load().Compress })
		if len(batch) == 0 {
			continue
		}
		archives := make([]gzipped.Archives, len(batch))
		for i, f := range batch {
			// A larger archive was not written by hinit, or package reader could not read it. Compressing it would only delay the
			// other archives.
			archives[i] = gzipped.Archives{Dir: f.archives.Dir, Most: max(2*f.limits.Load().MaxSize, gzipped.DefaultMaxSize)}
		}
		results, err := c.opts.Pack(c.ctx, archives, c.opts.period)
		if c.ctx.Err() != nil {
			return
		}
		for i, f := range batch {
			of := err
			if err == nil && results[i].Error != "" {
				of = errors.New(results[i].Error)
			}
			if f.recordPacked(of); of == nil && results[i].Again {
				c.request(f)
			}
		}
	}
}

// recordPacked reports a failed compression once, and once when it works again. err is nil if every archive that was old enough
// has been compressed.
func (f *file) recordPacked(err error) {
	switch {
	case err == nil && f.unpackable.Swap(false):
		f.set.opts.Warn(f.service, fmt.Sprintf("the archives of %q are compressed again", f.path))
	case err != nil && !f.unpackable.Swap(true):
		f.set.opts.Warn(f.service, fmt.Sprintf("cannot compress the archives of %q: %v; they stay as they are for now", f.path, err))
	}
}
