package logrotate

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/redact"
)

const (
	// consoleLimit is the soft limit, in bytes, of the queue of a console. Above it, a service may add lines only while it has
	// less than minSourceQueue queued.
	consoleLimit = 1 << 20
	// maxSourceQueue is the maximum number of bytes that a single source may have queued. A source with more has to wait, because
	// a longer queue would delay the lines of other services.
	maxSourceQueue = 128 << 10
	// minSourceQueue is the number of bytes that a source may have queued even when the console's queue is full. So a quiet
	// service never waits for others.
	minSourceQueue = 4 << 10
	// stalledShare is the maximum number of bytes that a single source may have queued while the reader has stalled. Additional
	// lines of this source are dropped.
	stalledShare = consoleLimit / 4 * 3
	// consoleBlock is the size at which a buffer counts as full. A buffer may exceed it by one batch of lines.
	consoleBlock = 64 << 10
	// The console writes a notice about dropped lines only when at most noticeBelow bytes are queued. Because of this delay, one
	// notice reports many dropped lines.
	noticeBelow = consoleLimit / 2
)

// source is the output of one service, or of the init itself, to one console. Its fields are guarded by console.mu, and the
// masker by masking. The names and the pointers lost and secrets don't change.
type source struct {
	name, profile, file string
	lost                *atomic.Uint64 // counter of dropped lines in the log's statistics

	secrets *atomic.Pointer[redact.Secrets] // values to mask
	masking sync.Mutex                      // guards masker; the search for secrets takes too long to hold console.mu
	masker  redact.Masker

	waiting     int   // number of queued bytes
	dropped     int64 // number of dropped lines that the next notice reports; later lines wait for this notice
	mustNotWait bool  // the pump must not wait, because [Log.Tail] needs the last lines of the run now
}

// block is a buffer of complete lines. The field shares lists, in the order of the bytes, how many bytes come from which source.
type block struct {
	data   []byte
	shares []share
}

type share struct {
	source *source
	bytes  int
}

// console writes the lines of all services to one of the container's streams, stdout or stderr. Pumps put complete lines into
// blocks, and one goroutine writes the blocks. A pump is the goroutine that reads one pipe. A pump waits if its source has used
// up its share of the queue, as long as the reader makes progress. When the pipe of the service is then full, the service also
// waits.
type console struct {
	stream string
	mode   ConsoleMode
	mask   bool
	warn   func(service, message string)
	blocks sync.Pool // empty *block values to reuse
	output
	reader progress

	mu           sync.Mutex // never held across I/O
	wake         sync.Cond
	queue        []*block
	writingBlock *block    // the block that is being written
	waiting      int       // bytes in queue and writingBlock
	pumps        []*waiter // pumps that wait for room, in the order of arrival
	noWaiting    bool      // pumps must not wait, because they are about to stop
	withDropped  []*source // sources whose dropped lines were not yet reported in a notice
	dead         bool      // the console's reader is gone
	closing      bool
	drainWaiters []chan struct{} // channels of whenWritten, to close when nothing is queued
	stamp        []byte          // current time for JSON lines, formatted once for each batch

	done chan struct{}
}

func newConsole(stream string, f *os.File, o Options) *console {
	c := &console{stream: stream, mode: o.Console, mask: o.Mask, warn: o.Warn, reader: progress{stall: o.ConsoleStall, born: time.Now()}, done: make(chan struct{})}
	c.wake.L = &c.mu
	batch := o.MaxLine + readSize
	c.blocks.New = func() any { return &block{data: make([]byte, 0, consoleBlock+batch)} }
	c.attempt = c.writeAll // stored here, so that a write allocates nothing
	// Write with system calls on the descriptor. f.Write would kill the process with SIGPIPE if descriptor 1 or 2 has lost its
	// reader (os/signal, "SIGPIPE").
	raw, err := f.SyscallConn()
	if err != nil { // f is nil or closed
		c.dead = true
		close(c.done)
		return c
	}
	c.raw = raw
	_ = raw.Control(c.detectKind)
	go c.run()
	return c
}

// enqueue formats the lines of chunk for mode, and queues as many as fit. It doesn't block. It returns the rest, which the caller
// passes to addOrWait. If the parameter must is true or the reader has stalled, the rest can't wait: enqueue drops it and counts
// its lines.
func (c *console) enqueue(src *source, chunk []byte, mode ConsoleMode, must bool) (rest []byte) {
	if c.mask {
		src.masking.Lock() // held until the lines are queued, to keep their order
		defer src.masking.Unlock()
		chunk = src.masker.Hide(chunk, src.secrets.Load())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addLines(src, chunk, mode, must)
}

// addLines does the work of enqueue after secrets are masked. The caller holds mu.
func (c *console) addLines(src *source, chunk []byte, mode ConsoleMode, must bool) (rest []byte) {
	if c.dead || c.closing {
		return nil
	}
	must = must || c.noWaiting || c.stalled()
	if src.dropped == 0 {
		room := c.queueSpace(src, must)
		if mode == Raw {
			chunk = c.addRaw(src, chunk, room)
		} else {
			chunk = c.addFormatted(src, chunk, mode, room)
		}
	}
	c.wake.Signal()
	if !must {
		return chunk
	}
	if len(chunk) > 0 {
		if src.dropped == 0 {
			c.withDropped = append(c.withDropped, src)
		}
		n := bytes.Count(chunk, []byte{'\n'})
		src.dropped += int64(n)
		src.lost.Add(uint64(n))
	}
	return nil
}

// queueSpace returns the number of additional bytes that src may queue now. The parameter must is true if src can't wait. The
// caller holds mu.
func (c *console) queueSpace(src *source, must bool) int {
	switch {
	case must:
		return min(consoleLimit-c.waiting, stalledShare-src.waiting)
	case src.mustNotWait:
		return 2*consoleLimit - c.waiting // enough for the whole content of a pipe
	case c.waiting < consoleLimit:
		return maxSourceQueue - src.waiting
	}
	return minSourceQueue - src.waiting
}

// addRaw queues the lines of chunk that fit into room bytes, and returns the rest. The caller holds mu.
func (c *console) addRaw(src *source, chunk []byte, room int) []byte {
	fit := len(chunk)
	if fit > room {
		fit = bytes.LastIndexByte(chunk[:max(room, 0)], '\n') + 1
		if fit == 0 && c.mayAddLong(src) {
			fit = bytes.IndexByte(chunk, '\n') + 1
		}
	}
	if fit > 0 {
		b := c.lastBlock()
		b.data = append(b.data, chunk[:fit]...)
		c.addBytes(b, src, fit)
	}
	return chunk[fit:]
}

// addFormatted queues the lines of chunk that fit into room bytes, in the format of mode, and returns the rest. It is the
// counterpart of addRaw for modes that change the lines. The caller holds mu.
func (c *console) addFormatted(src *source, chunk []byte, mode ConsoleMode, room int) []byte {
	c.setStamp()
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		b := c.lastBlock()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, chunk[:n-1])
		size := len(b.data) - before
		if size > room && !c.mayAddLong(src) {
			b.data = b.data[:before]
			break
		}
		c.addBytes(b, src, size)
		chunk, room = chunk[n:], room-size
	}
	return chunk
}

// mayAddLong reports whether src may queue one line even if the line is longer than the room for src. The caller holds mu.
func (c *console) mayAddLong(src *source) bool { return src.waiting == 0 && c.waiting < consoleLimit }

// lastBlock returns the block to which the next lines are appended. The caller holds mu.
func (c *console) lastBlock() *block {
	if n := len(c.queue); n > 0 && len(c.queue[n-1].data) < consoleBlock {
		return c.queue[n-1]
	}
	b := c.blocks.Get().(*block)
	c.queue = append(c.queue, b)
	return b
}

// addBytes records that size bytes at the end of block b come from src. The caller holds mu.
func (c *console) addBytes(b *block, src *source, size int) {
	if last := len(b.shares) - 1; last >= 0 && b.shares[last].source == src {
		b.shares[last].bytes += size
	} else {
		b.shares = append(b.shares, share{src, size})
	}
	if c.waiting == 0 {
		c.reader.record() // start to measure the time without progress
	}
	src.waiting += size
	c.waiting += size
}

// setStamp sets the time for JSON lines to now. The caller holds mu.
func (c *console) setStamp() { c.stamp = time.Now().AppendFormat(c.stamp[:0], time.RFC3339Nano) }

// whenWritten returns a channel that is closed when nothing is queued, or when the reader is gone. Lines that are queued after
// the call also delay the closing of the channel.
func (c *console) whenWritten() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := make(chan struct{})
	c.drainWaiters = append(c.drainWaiters, done)
	c.closeSynced()
	return done
}

// closeSynced closes the channels of whenWritten if nothing is queued or the reader is gone. The caller holds mu.
func (c *console) closeSynced() {
	if !c.dead && c.waiting > 0 {
		return
	}
	for _, done := range c.drainWaiters {
		close(done)
	}
	c.drainWaiters = nil
}

// nextBlock waits for a block to write and returns it. It returns nil when the console is closed, or when its reader is gone.
func (c *console) nextBlock() *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.waiting <= noticeBelow {
			c.addNotices()
		}
		switch {
		case c.dead:
			return nil
		case len(c.queue) > 0:
			b := c.queue[0]
			n := copy(c.queue, c.queue[1:])
			c.queue[n] = nil
			c.queue = c.queue[:n]
			c.writingBlock = b
			return b
		case c.closing:
			return nil
		}
		c.wake.Wait()
	}
}

// addNotices queues a notice for each source with dropped lines. The notice comes after the source's earlier lines and before its
// next lines. The caller holds mu.
func (c *console) addNotices() {
	for i, src := range c.withDropped {
		where := "they are in no file"
		if src.file != "" {
			where = "all are in " + src.file
		}
		text := fmt.Appendf(nil, "[hinit] %d lines of %s not shown here; %s", src.dropped, src.name, where)
		mode := c.mode
		if mode != JSON {
			mode = Raw // the notice itself names the service
		}
		c.setStamp()
		b := c.lastBlock()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, text)
		c.addBytes(b, src, len(b.data)-before)
		src.dropped = 0
		c.withDropped[i] = nil
	}
	if len(c.withDropped) > 0 {
		c.withDropped = c.withDropped[:0]
		c.wakePumps()
	}
}

// initWriter is the writer that [Set.Console] returns, for the init's own lines.
type initWriter struct {
	console *console
	source  *source
}

func (w *initWriter) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	chunk := p
	if p[len(p)-1] != '\n' {
		chunk = append(bytes.Clone(p), '\n')
	}
	mode := w.console.mode
	if mode == Off {
		mode = Raw
	}
	w.console.enqueue(w.source, chunk, mode, true) // true, because the init itself never waits
	return len(p), nil
}

// stalled reports whether the console's reader has read nothing for longer than progress.stall, so that pumps must not wait for
// the reader. The caller holds mu.
func (c *console) stalled() bool {
	return c.reader.stall < 0 || c.waiting > 0 && c.reader.idle() >= c.reader.stall
}

// progress records when the reader of a console last read something.
type progress struct {
	stall time.Duration // after this time without progress the reader counts as stalled; negative: pumps never wait
	born  time.Time
	moved atomic.Int64 // when the reader last read something, or data was queued while the queue was empty; nanoseconds since born
}

// idle returns how long ago the reader last made progress.
func (r *progress) idle() time.Duration { return time.Since(r.born) - time.Duration(r.moved.Load()) }

// record records that the reader has made progress now.
func (r *progress) record() { r.moved.Store(int64(time.Since(r.born))) }

// waiter is a pump that waits until the console has room for its lines.
type waiter struct {
	source *source
	woken  chan struct{}
}

// addOrWait queues the lines in rest, for which enqueue had no room. It waits for room if necessary. If the reader makes no
// progress for progress.stall, addOrWait drops and counts the remaining lines.
func (c *console) addOrWait(src *source, rest []byte) {
	if len(rest) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest = c.addLines(src, rest, c.mode, false); len(rest) > 0; rest = c.addLines(src, rest, c.mode, false) {
		w := &waiter{src, make(chan struct{})}
		c.pumps = append(c.pumps, w)
		left := max(c.reader.stall-c.reader.idle(), time.Millisecond)
		c.mu.Unlock()
		select {
		case <-w.woken:
		case <-time.After(left):
		}
		c.mu.Lock()
		if i := slices.Index(c.pumps, w); i >= 0 {
			c.pumps = slices.Delete(c.pumps, i, i+1)
		}
	}
}

// wakePumps wakes the pumps that have room now, or that must not wait any longer. The caller holds mu.
func (c *console) wakePumps() {
	need := maxSourceQueue / 2 // wake a pump only if there is much room for its lines
	if c.waiting >= consoleLimit {
		need = minSourceQueue
	}
	left := c.pumps[:0]
	for _, w := range c.pumps {
		src := w.source
		if c.dead || c.closing || c.noWaiting || src.mustNotWait || src.dropped == 0 && c.queueSpace(src, false) >= need {
			close(w.woken)
			continue
		}
		left = append(left, w)
	}
	clear(c.pumps[len(left):])
	c.pumps = left
}

// setHurry with true wakes all waiting pumps and keeps every pump from waiting, until setHurry is called with false.
func (c *console) setHurry(hurry bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noWaiting = hurry
	c.wakePumps()
}

// setUrgent with true wakes the waiting pumps of one source and keeps them from waiting, until setUrgent is called with false.
func (c *console) setUrgent(src *source, urgent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.mustNotWait != urgent {
		src.mustNotWait = urgent
		c.wakePumps()
	}
}
