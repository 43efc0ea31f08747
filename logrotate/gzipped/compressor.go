// Package gzipped decides when the archives (the rotated files) of logs are compressed: one log after the other, and only some
// time after the rotation (see [New]). Package packer does the compression, and package reader reads compressed archives.
//
// A [Compressor] owns one goroutine while there is work.
package gzipped

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// DefaultMaxSize is the default maximum, in bytes, of an archive's decompressed size when package reader reads it.
const DefaultMaxSize = 256 << 20

// Log is a log whose archives may be compressed.
type Log interface {
	// CompressionTarget returns the directory of the archives, and the size in bytes of the largest archive to compress. If the
	// result most is 0, no archive is compressed.
	CompressionTarget() (dir string, most int64)
	// Packed is called after a compression. err is nil if every archive that was old enough has been compressed.
	Packed(err error)
}

// Archives tells a [Packer] which archives of one log to compress.
type Archives struct {
	Dir  string
	Most int64 // size in bytes of the largest archive to compress
}

// Result is the outcome of compressing one log's archives.
type Result struct {
	Again bool   // some archives are still too young; call the Packer again
	Error string // text of the error, or "" if there was none
}

// Packer compresses the archives of logs. The parameter young is the minimum age: the Packer skips archives that were rotated
// more recently. It returns an error, or one result for each log in the same order. It stops when ctx ends.
type Packer func(ctx context.Context, logs []Archives, young time.Duration) ([]Result, error)

// Compressor collects logs whose archives must be compressed, and calls a Packer for them. Its methods may be called from any
// goroutine.
type Compressor struct {
	pack   Packer
	period time.Duration
	ctx    context.Context //nolint:containedctx // ends when End is called
	end    context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex // never held across I/O
	queue []Log      // each log at most once
	busy  bool       // a goroutine is handling the queue
}

// New returns a compressor that calls the Packer pack for the queued logs once per period. It compresses only archives older than
// period.
func New(pack Packer, period time.Duration) *Compressor {
	c := &Compressor{pack: pack, period: period}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// Request queues the log l for the compression of its archives. It doesn't block. After a call of End it does nothing.
func (c *Compressor) Request(l Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil || slices.Contains(c.queue, l) {
		return
	}
	c.queue = append(c.queue, l)
	if !c.busy {
		c.busy = true
		c.work.Go(guard.Func("compressing archives", c.run))
	}
}

// End cancels the compression and all requests. It doesn't wait for the end of the compression; Wait does.
func (c *Compressor) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// Wait blocks until the goroutine has ended. Call it after End.
func (c *Compressor) Wait() { c.work.Wait() }

// take returns the queued logs and empties the queue.
func (c *Compressor) take() []Log {
	c.mu.Lock()
	defer c.mu.Unlock()
	batch := c.queue
	c.queue, c.busy = nil, len(batch) > 0
	return batch
}

func (c *Compressor) run() {
	for pause.For(c.ctx, c.period) {
		batch := c.take()
		if len(batch) == 0 {
			return
		}
		var logs []Log
		var archives []Archives
		for _, l := range batch {
			if dir, most := l.CompressionTarget(); most > 0 {
				logs, archives = append(logs, l), append(archives, Archives{dir, most})
			}
		}
		if len(logs) == 0 {
			continue
		}
		results, err := c.pack(c.ctx, archives, c.period)
		if c.ctx.Err() != nil {
			return
		}
		for i, l := range logs {
			of := err
			if err == nil && results[i].Error != "" {
				of = errors.New(results[i].Error)
			}
			if l.Packed(of); of == nil && results[i].Again {
				c.Request(l)
			}
		}
	}
}
