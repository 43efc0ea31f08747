package logrotate

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/redact"
)

const (
	// consoleLimit is how many bytes may wait for a console before every service with more than a little waits for its turn.
	consoleLimit = 1 << 20
	// consoleShare is how many bytes of one source may wait while its service goes on. More would delay the lines of the others, which
	// queue behind them.
	consoleShare = 128 << 10
	// consoleLittle is how many bytes of one source may wait however many wait of the others: a quiet service never waits for its turn.
	consoleLittle = 4 << 10
	// stalledShare is how many bytes of one source may wait for a reader that has stalled, before lines are left out.
	stalledShare = consoleLimit / 4 * 3
	// consoleBlock is when a buffer is full. It then holds that and one more batch.
	consoleBlock = 64 << 10
	// noticeBelow is how much may wait when a notice is written. It leaves room, so that there is one notice about many
	// lines and not many about one.
	noticeBelow = consoleLimit / 2
)

// source is one service, or the init itself, on one console. Except for the names it belongs to the console's lock.
type source struct {
	name, profile, file string
	lost                *atomic.Uint64 // counter of dropped lines; may be nil

	secrets *atomic.Pointer[redact.Secrets] // to be hidden; what it points to may be nil
	masking sync.Mutex                      // its own: looking for secrets must not hold up other services
	masker  redact.Masker

	waiting int   // bytes
	dropped int64 // lines that the next notice is about; no line passes them
	urgent  bool  // the last lines of a run are asked for: its pump must not wait here
}

// block is a buffer of whole lines and whose they are.
type block struct {
	data   []byte
	shares []share
}

type share struct {
	source *source
	bytes  int
}

// console is the sink of one of the container's streams. Pumps put whole lines into blocks; one goroutine writes them. A pump with more
// lines than its share waits, and its service with it, as long as the reader reads.
type console struct {
	stream string
	mode   ConsoleMode
	mask   bool
	warn   func(service, message string)
	blocks sync.Pool // *block, empty; a quiet console has none
	output
	reader progress

	mu      sync.Mutex // never held across I/O
	wake    sync.Cond
	queue   []*block
	flight  *block    // what is being written
	waiting int       // bytes in queue and in flight
	pumps   []*waiter // the first came first
	hurry   bool      // no pump waits: the pumps are to stop
	missing []*source // with dropped lines
	dead    bool      // the other end is gone
	closing bool
	synced  []chan struct{} // closed when nothing waits
	stamp   []byte          // JSON's time, made once a batch

	done chan struct{}
}

func newConsole(stream string, f *os.File, o Options) *console {
	c := &console{stream: stream, mode: o.Console, mask: o.Mask, warn: o.Warn, reader: progress{stall: o.ConsoleStall, born: time.Now()}, done: make(chan struct{})}
	c.wake.L = &c.mu
	batch := o.MaxLine + readSize
	c.blocks.New = func() any { return &block{data: make([]byte, 0, consoleBlock+batch)} }
	c.attempt = c.writeAll // made once, so that a write allocates nothing
	if f != nil {
		// By system call on the descriptor: f.Write would end the whole process with SIGPIPE when the reader of descriptor 1 or 2
		// is gone (os/signal, "SIGPIPE").
		if raw, err := f.SyscallConn(); err == nil {
			c.raw = raw
			_ = raw.Control(c.examine)
			go c.run()
			return c
		}
	}
	c.dead = true
	close(c.done)
	return c
}

// hide puts the mask on what is secret. The caller holds masking.
func (src *source) hide(chunk []byte) []byte {
	var set *redact.Secrets
	if src.secrets != nil {
		set = src.secrets.Load()
	}
	return src.masker.Hide(chunk, set)
}

// take adds the lines for which there is room, as mode wants them. It returns the others, as they are to be shown, if they can wait: who
// calls it gives those to insist. It counts them as left out if not: because the reader has stalled, or because they must not wait. It
// doesn't block.
func (c *console) take(src *source, chunk []byte, mode ConsoleMode, must bool) (rest []byte) {
	if c.mask {
		src.masking.Lock() // held until they are added, because of the order
		defer src.masking.Unlock()
		chunk = src.hide(chunk)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.add(src, chunk, mode, must)
}

// add is take. The caller holds mu.
func (c *console) add(src *source, chunk []byte, mode ConsoleMode, must bool) (rest []byte) {
	if c.dead || c.closing {
		return nil
	}
	must = must || c.hurry || c.stalled()
	if src.dropped == 0 {
		room := c.room(src, must)
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
			c.missing = append(c.missing, src)
		}
		n := bytes.Count(chunk, []byte{'\n'})
		src.dropped += int64(n)
		if src.lost != nil {
			src.lost.Add(uint64(n))
		}
	}
	return nil
}

// room is how many bytes src may add. The caller holds mu.
func (c *console) room(src *source, must bool) int {
	switch {
	case must:
		return min(consoleLimit-c.waiting, stalledShare-src.waiting)
	case src.urgent:
		return 2*consoleLimit - c.waiting // for what is left in its pipe
	case c.waiting < consoleLimit:
		return consoleShare - src.waiting
	}
	return consoleLittle - src.waiting
}

// addRaw adds the lines of chunk for which there is room, and returns the others. The caller holds mu.
func (c *console) addRaw(src *source, chunk []byte, room int) []byte {
	fit := len(chunk)
	if fit > room {
		fit = bytes.LastIndexByte(chunk[:max(room, 0)], '\n') + 1
		if fit == 0 && c.empty(src) {
			fit = bytes.IndexByte(chunk, '\n') + 1
		}
	}
	if fit > 0 {
		b := c.last()
		b.data = append(b.data, chunk[:fit]...)
		c.account(b, src, fit)
	}
	return chunk[fit:]
}

// addFormatted is addRaw for the other modes.
func (c *console) addFormatted(src *source, chunk []byte, mode ConsoleMode, room int) []byte {
	c.setStamp()
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		b := c.last()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, chunk[:n-1])
		size := len(b.data) - before
		if size > room && !c.empty(src) {
			b.data = b.data[:before]
			break
		}
		c.account(b, src, size)
		chunk, room = chunk[n:], room-size
	}
	return chunk
}

// empty reports whether there is room for one line of src of any length. The caller holds mu.
func (c *console) empty(src *source) bool { return src.waiting == 0 && c.waiting < consoleLimit }

// last returns the block to add to. The caller holds mu.
func (c *console) last() *block {
	if n := len(c.queue); n > 0 && len(c.queue[n-1].data) < consoleBlock {
		return c.queue[n-1]
	}
	b := c.blocks.Get().(*block)
	c.queue = append(c.queue, b)
	return b
}

// account notes that size more bytes of b are src's. The caller holds mu.
func (c *console) account(b *block, src *source, size int) {
	if last := len(b.shares) - 1; last >= 0 && b.shares[last].source == src {
		b.shares[last].bytes += size
	} else {
		b.shares = append(b.shares, share{src, size})
	}
	if c.waiting == 0 {
		c.reader.move() // the reader has something to take from now on
	}
	src.waiting += size
	c.waiting += size
}

// setStamp is called with mu held.
func (c *console) setStamp() { c.stamp = time.Now().AppendFormat(c.stamp[:0], time.RFC3339Nano) }

// sync returns a channel that is closed when everything that waits now, or that comes meanwhile, is written or given up.
func (c *console) sync() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	done := make(chan struct{})
	c.synced = append(c.synced, done)
	c.tell()
	return done
}

// tell closes the channels of sync, if it is time. The caller holds mu.
func (c *console) tell() {
	if !c.dead && c.waiting > 0 {
		return
	}
	for _, done := range c.synced {
		close(done)
	}
	c.synced = nil
}

// next waits for a block to write. It returns nil at the end.
func (c *console) next() *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.waiting <= noticeBelow {
			c.notices()
		}
		switch {
		case c.dead:
			return nil
		case len(c.queue) > 0:
			b := c.queue[0]
			n := copy(c.queue, c.queue[1:])
			c.queue[n] = nil
			c.queue = c.queue[:n]
			c.flight = b
			return b
		case c.closing:
			return nil
		}
		c.wake.Wait()
	}
}

// notices says what is missing. It comes behind all that was taken before lines were dropped, and before all that the same
// source gives afterwards. The caller holds mu.
func (c *console) notices() {
	for i, src := range c.missing {
		where := "they are in no file"
		if src.file != "" {
			where = "all are in " + src.file
		}
		text := fmt.Appendf(nil, "[hinit] %d lines of %s not shown here; %s", src.dropped, src.name, where)
		mode := c.mode
		if mode != JSON {
			mode = Raw // the notice says by itself who says it
		}
		c.setStamp()
		b := c.last()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, text)
		c.account(b, src, len(b.data)-before)
		src.dropped = 0
		c.missing[i] = nil
	}
	if len(c.missing) > 0 {
		c.missing = c.missing[:0]
		c.call()
	}
}

// ownWriter is what [Set.Console] returns.
type ownWriter struct {
	console *console
	source  *source
}

func (w *ownWriter) Write(p []byte) (int, error) {
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
	w.console.take(w.source, chunk, mode, true) // the init itself never waits
	return len(p), nil
}
