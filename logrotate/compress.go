package logrotate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/logrotate/gzipped"
)

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
