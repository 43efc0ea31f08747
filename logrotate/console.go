package logrotate

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/pause"
	"hinit/internal/redact"
)

const (
	// maxConsoleQueue is the number of bytes above which a console's queue counts as full. From then on a service may add lines
	// only while it has less than minSourceQueue queued.
	maxConsoleQueue = 1 << 20
	// maxSourceQueue is the maximum number of bytes that a single source may have queued. A source with more has to wait, because
	// a longer queue would delay the lines of other services.
	maxSourceQueue = 128 << 10
	// minSourceQueue is the number of bytes that a source may always have queued, even when the console's queue is full. So a
	// quiet service never waits for others.
	minSourceQueue = 4 << 10
	// maxStalledQueue is the maximum number of bytes that a single source may have queued while the reader has stalled.
	// Additional lines of this source are dropped.
	maxStalledQueue = maxConsoleQueue / 4 * 3
	// consoleBlockSize is the size in bytes from which no more lines are added to a buffer. The last batch may exceed it.
	consoleBlockSize = 64 << 10
	// noticeQueueLimit is the queue length in bytes below which a console writes the notices about dropped lines. While the queue
	// is longer, it delays them, so that a single notice covers many dropped lines.
	noticeQueueLimit = maxConsoleQueue / 2
)

// source is where the lines of one service, or of the init itself, enter one console. console.mu guards the fields, except masker
// (guarded by masking) and those that never change: the names, droppedTotal and secrets.
type source struct {
	name, profile, file string
	droppedTotal        *atomic.Uint64 // Counter of dropped lines in the log's statistics.

	secrets *atomic.Pointer[redact.Secrets] // Secrets to mask in the output; nil: none.
	maskMu  sync.Mutex                      // Guards masker; the search for secrets takes too long to hold console.mu.
	masker  redact.Masker

	queuedBytes  int   // Bytes of this source in the console's queue.
	droppedLines int64 // Lines dropped since the last notice. While it isn't 0, later lines wait for the notice.
	mustNotWait  bool  // Whether the pump must not wait, because [Log.Tail] needs the last lines of the run now.
}

// block is a buffer of complete lines, often of several services. The field shares says for each part of the buffer, in order, how
// many bytes it has and from which source they come.
type block struct {
	data   []byte
	shares []share
}

type share struct {
	source *source
	bytes  int
}

// countLines calls add for each share of b, with the number of lines that end after the first `written` bytes of b.
func (b *block) countLines(written int, add func(src *source, lines int)) {
	end := 0
	for _, sh := range b.shares {
		begin := end
		end += sh.bytes
		add(sh.source, bytes.Count(b.data[min(max(begin, written), end):end], []byte{'\n'}))
	}
}

// console writes the lines of all services to one of the container's streams, stdout or stderr. Each pump (the goroutine that
// reads one pipe) puts complete lines into blocks, and one goroutine writes the blocks. A pump whose source has used up its
// share of the queue waits, as long as the reader makes progress. Meanwhile the pipe of the service fills up, and then the
// service waits too.
type console struct {
	stream string
	mode   ConsoleMode
	mask   bool
	warn   func(service, message string)
	blocks sync.Pool // Empty *block values to reuse.
	consoleOutput
	readerProgress progress

	mu                 sync.Mutex // No goroutine holds mu during I/O.
	wake               sync.Cond
	queue              []*block
	writingBlock       *block         // Block that is being written.
	queuedBytes        int            // Number of bytes in queue and writingBlock.
	waitingPumps       []*waitingPump // Pumps that wait for queue space, in the order of arrival.
	pumpsMustNotWait   bool           // True while pumps must not wait, because the Set is being frozen or closed.
	sourcesWithDropped []*source      // Sources whose dropped lines were not yet reported in a notice.
	failed             bool           // Whether the stream has failed for good, for example with EPIPE, so that its lines are dropped.
	closing            bool
	drainWaiters       []chan struct{} // Open channels that whenWritten has returned.
	jsonTime           []byte          // Current time for JSON lines, formatted once for each batch.

	done chan struct{}
}

func newConsole(stream string, f *os.File, o Options) *console {
	c := &console{stream: stream, mode: o.Console, mask: o.Mask, warn: o.Warn, readerProgress: progress{stallTime: o.ConsoleStall, start: time.Now()}, done: make(chan struct{})}
	c.wake.L = &c.mu
	batch := o.MaxLine + readSize
	c.blocks.New = func() any { return &block{data: make([]byte, 0, consoleBlockSize+batch)} }
	c.writeFunc = c.writeAll // Store the method value once, because each c.writeAll would allocate a new one.
	// Write with system calls on the descriptor. f.Write would kill the process with SIGPIPE if descriptor 1 or 2 has lost its
	// reader (os/signal, "SIGPIPE").
	raw, err := f.SyscallConn()
	if err != nil { // f is nil or closed.
		c.failed = true
		close(c.done)
		return c
	}
	c.rawConn = raw
	_ = raw.Control(c.detectKind)
	go c.run()
	return c
}

// enqueue formats the lines of chunk for mode, and queues the lines for which there is room. It returns the rest, which the
// caller passes to addOrWait. If mustNotWait is set, or while the reader has stalled, enqueue drops and counts the lines without
// room instead. If mode is Off, it only looks for secrets. It doesn't block.
func (c *console) enqueue(src *source, chunk []byte, mode ConsoleMode, mustNotWait bool) (rest []byte) {
	if c.mask {
		src.maskMu.Lock() // Hold masking until the lines are queued, to keep their order.
		defer src.maskMu.Unlock()
		chunk = src.masker.Hide(chunk, src.secrets.Load())
	}
	if mode == Off { // A private key may begin or end in lines that are not shown.
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addLines(src, chunk, mode, mustNotWait)
}

// addLines is enqueue without the masking of secrets. The caller holds mu.
func (c *console) addLines(src *source, chunk []byte, mode ConsoleMode, mustNotWait bool) (rest []byte) {
	if c.failed || c.closing {
		src.droppedTotal.Add(uint64(bytes.Count(chunk, []byte{'\n'})))
		return nil
	}
	mustNotWait = mustNotWait || c.pumpsMustNotWait || c.stalled()
	if src.droppedLines == 0 {
		room := c.queueSpace(src, mustNotWait)
		if mode == Raw {
			chunk = c.addRaw(src, chunk, room)
		} else {
			chunk = c.addFormatted(src, chunk, mode, room)
		}
	}
	c.wake.Signal()
	if !mustNotWait {
		return chunk
	}
	if len(chunk) > 0 {
		if src.droppedLines == 0 {
			c.sourcesWithDropped = append(c.sourcesWithDropped, src)
		}
		n := bytes.Count(chunk, []byte{'\n'})
		src.droppedLines += int64(n)
		src.droppedTotal.Add(uint64(n))
	}
	return nil
}

// queueSpace returns how many more bytes src may queue now. mustNotWait means that src can't wait for room later, so it may use
// more of the queue. The caller holds mu.
func (c *console) queueSpace(src *source, mustNotWait bool) int {
	switch {
	case mustNotWait:
		return min(maxConsoleQueue-c.queuedBytes, maxStalledQueue-src.queuedBytes)
	case src.mustNotWait:
		return 2*maxConsoleQueue - c.queuedBytes // Twice the limit is enough for the whole content of a pipe.
	case c.queuedBytes < maxConsoleQueue:
		return maxSourceQueue - src.queuedBytes
	}
	return minSourceQueue - src.queuedBytes
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

// addFormatted is addRaw for the modes that change the lines: it queues the formatted lines of chunk that fit into room bytes, and
// returns the rest unformatted. The caller holds mu.
func (c *console) addFormatted(src *source, chunk []byte, mode ConsoleMode, room int) []byte {
	c.setTime()
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

// mayAddLong reports whether src may queue one line for which its room is too small. Without this exception, a line that is
// longer than any room could never be queued. The caller holds mu.
func (c *console) mayAddLong(src *source) bool {
	return src.queuedBytes == 0 && c.queuedBytes < maxConsoleQueue
}

// lastBlock returns the block to which the next lines are appended. The caller holds mu.
func (c *console) lastBlock() *block {
	if n := len(c.queue); n > 0 && len(c.queue[n-1].data) < consoleBlockSize {
		return c.queue[n-1]
	}
	b := c.blocks.Get().(*block)
	c.queue = append(c.queue, b)
	return b
}

// addBytes records that the last size bytes of block b come from src, and adds them to the queue lengths. The caller holds mu.
func (c *console) addBytes(b *block, src *source, size int) {
	if last := len(b.shares) - 1; last >= 0 && b.shares[last].source == src {
		b.shares[last].bytes += size
	} else {
		b.shares = append(b.shares, share{src, size})
	}
	if c.queuedBytes == 0 {
		c.readerProgress.record() // The reader had nothing to read, so the time without progress counts from now.
	}
	src.queuedBytes += size
	c.queuedBytes += size
}

// setTime stores the current time in the format of JSON lines. The caller holds mu.
func (c *console) setTime() { c.jsonTime = time.Now().AppendFormat(c.jsonTime[:0], time.RFC3339Nano) }

// whenWritten returns a channel that is closed as soon as the queue is empty, or the stream has failed for good. Lines that
// are added after the call delay that too.
func (c *console) whenWritten() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := make(chan struct{})
	c.drainWaiters = append(c.drainWaiters, done)
	c.closeDrained()
	return done
}

// closeDrained closes the channels that whenWritten has returned, if the queue is empty or the stream has failed. The caller holds
// mu.
func (c *console) closeDrained() {
	if !c.failed && c.queuedBytes > 0 {
		return
	}
	for _, done := range c.drainWaiters {
		close(done)
	}
	c.drainWaiters = nil
}

// nextBlock waits for the next block to write and returns it. It returns nil when the console is closed and its queue is empty, or
// when the stream has failed for good.
func (c *console) nextBlock() *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.queuedBytes <= noticeQueueLimit {
			c.addNotices()
		}
		switch {
		case c.failed:
			return nil
		case len(c.queue) > 0:
			b := c.queue[0]
			c.queue = slices.Delete(c.queue, 0, 1)
			c.writingBlock = b
			return b
		case c.closing:
			return nil
		}
		c.wake.Wait()
	}
}

// addNotices queues a notice for each source with dropped lines. The notice stands in place of the missing lines: after the
// source's earlier lines and before its next lines. The caller holds mu.
func (c *console) addNotices() {
	for i, src := range c.sourcesWithDropped {
		where := "they are in no file"
		if src.file != "" {
			where = "see " + src.file
		}
		text := fmt.Appendf(nil, "[hinit] %d lines of %s not shown here; %s", src.droppedLines, src.name, where)
		mode := c.mode
		if mode != JSON {
			mode = Raw // The notice itself names the service.
		}
		c.setTime()
		b := c.lastBlock()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, text)
		c.addBytes(b, src, len(b.data)-before)
		src.droppedLines = 0
		c.sourcesWithDropped[i] = nil
	}
	if len(c.sourcesWithDropped) > 0 {
		c.sourcesWithDropped = c.sourcesWithDropped[:0]
		c.wakePumps()
	}
}

// initWriter passes the init's own lines to a console. [Set.Console] returns it.
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
	w.console.enqueue(w.source, chunk, mode, true) // The last argument is true, because the init itself never waits.
	return len(p), nil
}

// stalled reports whether the reader of the console has read nothing for longer than progress.stallTime. While the reader is
// stalled, pumps do not wait for it. The caller holds mu.
func (c *console) stalled() bool {
	return c.readerProgress.stallTime < 0 || c.queuedBytes > 0 && c.readerProgress.idle() >= c.readerProgress.stallTime
}

// progress measures how long the reader of a console has read nothing.
type progress struct {
	// Time without progress after which the reader counts as stalled. If it is negative, the reader
	// always counts as stalled, so pumps never wait.
	stallTime time.Duration
	start     time.Time
	latest    atomic.Int64 // Time of the last progress: a read, or data that entered an empty queue; nanoseconds since start.
}

func (r *progress) idle() time.Duration { return time.Since(r.start) - time.Duration(r.latest.Load()) }

func (r *progress) record() { r.latest.Store(int64(time.Since(r.start))) }

// waitingPump is a pump that waits in addOrWait for room in the queue.
type waitingPump struct {
	source *source
	woken  chan struct{}
}

// addOrWait queues rest, the lines for which enqueue had no room. It blocks until there is room. If the reader stalls meanwhile,
// addOrWait drops and counts the lines that remain.
func (c *console) addOrWait(src *source, rest []byte) {
	if len(rest) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		rest = c.addLines(src, rest, c.mode, false)
		if len(rest) == 0 {
			return
		}
		w := &waitingPump{src, make(chan struct{})}
		c.waitingPumps = append(c.waitingPumps, w)
		left := max(c.readerProgress.stallTime-c.readerProgress.idle(), time.Millisecond)
		c.mu.Unlock()
		pause.AtMost(left, w.woken)
		c.mu.Lock()
		if i := slices.Index(c.waitingPumps, w); i >= 0 {
			c.waitingPumps = slices.Delete(c.waitingPumps, i, i+1)
		}
	}
}

// wakePumps wakes the pumps that have room now, or that must not wait any longer. The caller holds mu.
func (c *console) wakePumps() {
	need := maxSourceQueue / 2 // Waking a pump for every few bytes would cost much processor time.
	if c.queuedBytes >= maxConsoleQueue {
		need = minSourceQueue
	}
	c.waitingPumps = slices.DeleteFunc(c.waitingPumps, func(w *waitingPump) bool {
		src := w.source
		mayContinue := c.failed || c.closing || c.pumpsMustNotWait || src.mustNotWait || src.droppedLines == 0 && c.queueSpace(src, false) >= need
		if mayContinue {
			close(w.woken)
		}
		return mayContinue
	})
}

// setNoWaiting(true) wakes all pumps that wait for room in the queue. Until setNoWaiting(false), no pump waits. Instead, the
// console drops lines for which it has no room. Freeze and Close need that.
func (c *console) setNoWaiting(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pumpsMustNotWait = on
	c.wakePumps()
}

// setUrgent is setNoWaiting for the pumps of one source, whose lines [Log.Tail] needs now.
func (c *console) setUrgent(src *source, urgent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.mustNotWait != urgent {
		src.mustNotWait = urgent
		c.wakePumps()
	}
}
