// Package gzipped sees to it that the archives of logs become gzip files, one after the other, a while after their rotation. Package packer
// compresses them, and package reader reads them.
//
// A [Compressor] owns one goroutine, while there is something to do.
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

// Most is how many bytes of an archive a reader takes by itself, decompressed.
const Most = 256 << 20

// Log is a log whose archives may be compressed.
type Log interface {
	// Packing returns the directory of the archives, and how many bytes an archive may have to be compressed; 0: none is to be.
	Packing() (dir string, most int64)
	// Packed is told how it went, nil when all of them that are old enough are compressed.
	Packed(err error)
}

// Archives are the archives of a log, as a [Packer] takes them.
type Archives struct {
	Dir  string
	Most int64 // bytes of the largest archive to compress
}

// Result is what became of them.
type Result struct {
	Again bool   // some are too young yet
	Error string // "" for none
}

// Packer compresses archives that are not younger than some time. It returns a result for each log, or an error, and stops when ctx ends.
type Packer func(ctx context.Context, logs []Archives, young time.Duration) ([]Result, error)

// Compressor has archives compressed. Its methods may be called from any goroutine.
type Compressor struct {
	pack   Packer
	period time.Duration
	ctx    context.Context //nolint:containedctx // its own, from New to End
	end    context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex // never held across I/O
	queue []Log      // each once
	busy  bool       // somebody will look at the queue
}

// New returns a compressor that leaves archives alone that are younger than period.
func New(pack Packer, period time.Duration) *Compressor {
	c := &Compressor{pack: pack, period: period}
	c.ctx, c.end = context.WithCancel(context.Background())
	return c
}

// Request asks for l's archives. It doesn't block.
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

// End stops the work. It doesn't wait for it.
func (c *Compressor) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
}

// Wait waits until nothing is being done any more. It must be called after End.
func (c *Compressor) Wait() { c.work.Wait() }

// take returns whose archives were asked for.
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
			if dir, most := l.Packing(); most > 0 {
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
