// Package gzipped compresses the archives of logs. Package reader reads them.
//
// Archives become gzip files one after the other, a while after their rotation, and never faster than with a quarter of a core.
// An archive is there, under one name or both, at every moment, also after a crash.
//
// A [Compressor] owns one goroutine, while there is something to do.
package gzipped

import (
	"context"
	"slices"
	"sync"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
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

// Compressor compresses archives. Its methods may be called from any goroutine.
//
// It needs no lock against who prunes: the compressed file gets its name when it is complete, then the archive is removed. If that
// was pruned meanwhile, the compressed file goes too.
type Compressor struct {
	actor  *fsutil.Actor
	period time.Duration
	ctx    context.Context //nolint:containedctx // its own, from New to End
	end    context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex // never held across I/O
	queue []Log      // each once
	busy  bool       // somebody will look at the queue
}

// New returns a compressor that works with the identity of actor, and leaves archives alone that are younger than period.
func New(actor *fsutil.Actor, period time.Duration) *Compressor {
	c := &Compressor{actor: actor.In(blocking.Logs), period: period}
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
	p := &packer{actor: c.actor, young: c.period, stop: c.ctx.Done()}
	for p.pause(c.period) {
		batch := c.take()
		if len(batch) == 0 {
			return
		}
		for _, l := range batch {
			if again := p.log(l); again {
				c.Request(l)
			}
		}
	}
}
