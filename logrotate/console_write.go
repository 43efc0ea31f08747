package logrotate

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
)

// output is the descriptor of a console. But for raw it is the writing goroutine's.
type output struct {
	raw     syscall.RawConn // nil: discard everything
	pipe    bool            // what raw is, as far as it matters for progress; see piece
	whole   bool
	device  bool
	writing []byte
	err     error
	attempt func(fd uintptr)
	faulty  bool // a write failed and none has worked since
}

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

// written gives back the room that b took.
func (c *console) written(b *block) {
	c.mu.Lock()
	c.flight = nil
	c.waiting -= len(b.data)
	for _, s := range b.shares {
		s.source.waiting -= s.bytes
	}
	c.call()
	c.tell()
	c.mu.Unlock()
	clear(b.shares)
	b.data, b.shares = b.data[:0], b.shares[:0]
	c.blocks.Put(b)
}

// examine looks at what kind of file the console is.
func (c *console) examine(fd uintptr) {
	var st unix.Stat_t
	if unix.Fstat(int(fd), &st) == nil {
		c.pipe = st.Mode&unix.S_IFMT == unix.S_IFIFO
		c.whole = st.Mode&unix.S_IFMT == unix.S_IFREG
		c.device = st.Mode&unix.S_IFMT == unix.S_IFCHR
	}
}

// page is how much a pipe takes when poll says that it takes something (pipe(7)), and what a terminal or a socket is given at once.
const page = 4 << 10

// piece is how much to write at once. A write that has to wait for the reader returns when all of it is written. It must be
// small, because its return is the only sign of a slow reader's progress.
func (c *console) piece(fd int) int {
	n := len(c.writing)
	switch {
	case c.whole || n <= page:
		return n
	case !c.pipe:
		return page
	}
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	held, err2 := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || err2 != nil {
		return page
	}
	return min(n, max(size-held, page))
}

// writeAll writes c.writing in spite of short writes, signals, and somebody who has made the shared descriptor
// non-blocking. A terminal with TOSTOP set takes nothing of a thread that gets SIGTTOU (termios(3)), and anybody with the terminal can
// set that.
func (c *console) writeAll(fd uintptr) {
	if c.device {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var block, old unix.Sigset_t
		block.Val[0] = 1 << (unix.SIGTTOU - 1)
		if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) == nil {
			defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }() // what was set can be set
		}
	}
	for len(c.writing) > 0 {
		n, err := unix.Write(int(fd), c.writing[:c.piece(int(fd))])
		switch {
		case n > 0:
			c.writing = c.writing[n:]
			c.reader.move()
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
		c.call()
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
	c.call()
	c.wake.Signal()
	c.mu.Unlock()
	<-c.done
}
