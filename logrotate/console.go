package logrotate

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
)

const (
	// consoleLimit is how many bytes may wait for a console.
	consoleLimit = 1 << 20
	// consoleShare is what may wait of one source, so that a flooding service doesn't push out all others.
	consoleShare = consoleLimit / 4 * 3
	// consoleBlock is when a buffer is full. It then holds that and one more batch.
	consoleBlock = 64 << 10
	// noticeBelow is how much may wait when a notice is written. It leaves room, so that there is one notice about many
	// lines and not many about one.
	noticeBelow = consoleLimit / 2
)

// source is one service, or the init itself, on one console. Except for the names it belongs to the console's lock.
//
// The masker has a lock of its own: looking for secrets must not hold up other services.
type source struct {
	name, profile, file string
	lost                *atomic.Uint64 // counter of dropped lines; may be nil

	secrets *atomic.Pointer[secrets] // to be hidden; what it points to may be nil
	masker  masker

	waiting int   // bytes
	dropped int64 // lines that the next notice is about; while there are any, all that come are dropped
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

// console is the sink of one of the container's streams. Pumps put whole lines into blocks; one goroutine writes them.
type console struct {
	stream string
	mode   ConsoleMode
	mask   bool
	raw    syscall.RawConn // nil: discard everything
	warn   func(service, message string)
	blocks sync.Pool // *block, empty; a quiet console has none

	mu      sync.Mutex // never held across I/O
	wake    sync.Cond
	queue   []*block
	flight  *block    // what is being written
	waiting int       // bytes in queue and in flight
	missing []*source // with dropped lines
	dead    bool      // the other end is gone
	closing bool
	synced  []chan struct{} // closed when nothing waits
	stamp   []byte          // JSON's time, made once a batch

	done chan struct{}

	// The writer's own.
	writing []byte
	err     error
	attempt func(fd uintptr)
	faulty  bool // a write failed and none has worked since
}

func newConsole(stream string, f *os.File, o Options) *console {
	c := &console{stream: stream, mode: o.Console, mask: o.Mask, warn: o.Warn, done: make(chan struct{})}
	c.wake.L = &c.mu
	batch := o.MaxLine + readSize
	c.blocks.New = func() any { return &block{data: make([]byte, 0, consoleBlock+batch)} }
	c.attempt = c.writeAll // made once, so that a write allocates nothing
	if f != nil {
		// By system call on the descriptor, not with f.Write: that would end the whole process with SIGPIPE when the reader
		// of descriptor 1 or 2 is gone (os/signal, "SIGPIPE").
		if raw, err := f.SyscallConn(); err == nil {
			c.raw = raw
			go c.run()
			return c
		}
	}
	c.dead = true
	close(c.done)
	return c
}

// lines takes whole lines of a service, as the mode wants them. It doesn't block.
func (c *console) lines(src *source, chunk []byte) {
	if c.mode != Off {
		c.give(src, chunk, c.mode)
	}
}

// give hides what is secret and adds the rest.
func (c *console) give(src *source, chunk []byte, mode ConsoleMode) {
	if !c.mask {
		c.add(src, chunk, mode)
		return
	}
	src.masker.mu.Lock() // held until they are added, because of the order
	defer src.masker.mu.Unlock()
	set := noSecrets()
	if src.secrets != nil && src.secrets.Load() != nil {
		set = src.secrets.Load()
	}
	c.add(src, src.masker.hide(chunk, set), mode)
}

func (c *console) add(src *source, chunk []byte, mode ConsoleMode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead || c.closing {
		return
	}
	if src.dropped == 0 {
		if mode == Raw {
			chunk = c.addRaw(src, chunk)
		} else {
			chunk = c.addFormatted(src, chunk, mode)
		}
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
	c.wake.Signal()
}

// room is how many bytes src may add. The caller holds mu.
func (c *console) room(src *source) int {
	return max(0, min(consoleLimit-c.waiting, consoleShare-src.waiting))
}

// addRaw adds the lines of chunk for which there is room, and returns the others. The caller holds mu.
func (c *console) addRaw(src *source, chunk []byte) []byte {
	fit := len(chunk)
	if room := c.room(src); fit > room {
		fit = bytes.LastIndexByte(chunk[:room], '\n') + 1
	}
	if fit > 0 {
		b := c.last()
		b.data = append(b.data, chunk[:fit]...)
		c.account(b, src, fit)
	}
	return chunk[fit:]
}

// addFormatted is addRaw for the other modes.
func (c *console) addFormatted(src *source, chunk []byte, mode ConsoleMode) []byte {
	c.setStamp()
	for len(chunk) > 0 {
		n := bytes.IndexByte(chunk, '\n') + 1
		b := c.last()
		before := len(b.data)
		b.data = c.format(b.data, mode, src, chunk[:n-1])
		size := len(b.data) - before
		if size > c.room(src) {
			b.data = b.data[:before]
			break
		}
		c.account(b, src, size)
		chunk = chunk[n:]
	}
	return chunk
}

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
	src.waiting += size
	c.waiting += size
}

// setStamp is called with mu held.
func (c *console) setStamp() { c.stamp = time.Now().AppendFormat(c.stamp[:0], time.RFC3339Nano) }

// run is the goroutine that owns the descriptor.
func (c *console) run() {
	defer close(c.done)
	defer guard.Catch("writing the container's " + c.stream)
	for b := c.next(); b != nil; b = c.next() {
		c.writing, c.err = b.data, nil
		if err := c.raw.Control(c.attempt); err != nil {
			c.err = err
		}
		c.writing = nil
		c.settle(c.err)
		c.written(b)
	}
}

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
	c.missing = c.missing[:0]
}

// written gives back the room that b took.
func (c *console) written(b *block) {
	c.mu.Lock()
	c.flight = nil
	c.waiting -= len(b.data)
	for _, s := range b.shares {
		s.source.waiting -= s.bytes
	}
	c.tell()
	c.mu.Unlock()
	clear(b.shares)
	b.data, b.shares = b.data[:0], b.shares[:0]
	c.blocks.Put(b)
}

// writeAll writes c.writing in spite of short writes, signals, and somebody who has made the shared descriptor
// non-blocking.
func (c *console) writeAll(fd uintptr) {
	for len(c.writing) > 0 {
		n, err := unix.Write(int(fd), c.writing)
		switch {
		case n > 0:
			c.writing = c.writing[n:]
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err != nil && !errors.Is(err, unix.EINTR):
			c.err = err
			return
		}
	}
}

// settle draws the consequences of a write.
func (c *console) settle(err error) {
	switch {
	case err == nil:
		if c.faulty {
			c.faulty = false
			c.warn("", "the container's "+c.stream+" is written again")
		}
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO), errors.Is(err, unix.EBADF), errors.Is(err, os.ErrClosed):
		c.mu.Lock()
		c.dead, c.queue, c.missing = true, nil, nil
		c.tell()
		c.mu.Unlock()
		c.warn("", fmt.Sprintf("cannot write the container's %s: %s; it gets no more lines, log files go on",
			c.stream, reason(err)))
	case !c.faulty: // a full disk behind it, for instance
		c.faulty = true
		c.warn("", fmt.Sprintf("cannot write the container's %s: %s; lines are missing there until it works, log files go on",
			c.stream, reason(err)))
	}
}

// close makes the goroutine write what there is and end, and waits for it.
func (c *console) close() {
	c.mu.Lock()
	c.closing = true
	c.wake.Signal()
	c.mu.Unlock()
	<-c.done
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
	w.console.give(w.source, chunk, mode)
	return len(p), nil
}
