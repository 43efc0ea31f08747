package logrotate

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
)

// consoleOutput is the state of the goroutine that writes to one of the container's streams. Only that goroutine uses the fields,
// except raw and fault.text.
type consoleOutput struct {
	rawConn   syscall.RawConn  // Connection to the stream.
	fileType  uint32           // Type of the file as in st_mode (S_IFMT); 0 if unknown.
	writing   []byte           // Part of the block that is not written yet.
	err       error            // Error of the last write.
	writeFunc func(fd uintptr) // The method value c.writeAll.
	fault     struct {
		text       atomic.Pointer[string] // Reason why lines are missing now; nil if all lines are written. Any goroutine may read it.
		reportedAt time.Time              // Time of the last report of a fault.
		reported   bool                   // Whether the present fault was reported.
	}
}

// run writes the blocks until the console is closed or its reader is gone. It runs in its own goroutine.
func (c *console) run() {
	defer close(c.done)
	defer guard.CatchPanic("writing the container's " + c.stream)
	for b := c.nextBlock(); b != nil; b = c.nextBlock() {
		c.writing, c.err = b.data, nil
		err := c.rawConn.Control(c.writeFunc)
		c.handleResult(b, cmp.Or(err, c.err))
		c.releaseBlock(b)
	}
}

// releaseBlock subtracts a written block from the queue lengths, and wakes the pumps that wait for room.
func (c *console) releaseBlock(b *block) {
	c.mu.Lock()
	c.writingBlock = nil
	c.queuedBytes -= len(b.data)
	for _, s := range b.shares {
		s.source.queuedBytes -= s.bytes
	}
	c.wakePumps()
	c.closeDrained()
	c.mu.Unlock()
	clear(b.shares)
	b.data, b.shares = b.data[:0], b.shares[:0]
	c.blocks.Put(b)
}

// detectKind determines the type of the stream, on which the size of writes depends.
func (c *console) detectKind(fd uintptr) {
	var st unix.Stat_t
	_ = unix.Fstat(int(fd), &st) // After an error, the kind is unknown.
	c.fileType = st.Mode & unix.S_IFMT
}

// pipeWriteSize is the size of one write to a pipe, terminal or socket. When poll reports a pipe as writable, a write of this
// size doesn't block (pipe(7)).
const pipeWriteSize = 4 << 10

// writeSize returns how many bytes to write next. A blocking write returns only when all its bytes are written, and only then
// hinit knows that a slow reader makes progress. So pieces are small.
func (c *console) writeSize(fd int) int {
	n := len(c.writing)
	switch {
	case c.fileType == unix.S_IFREG || n <= pipeWriteSize:
		return n
	case c.fileType != unix.S_IFIFO:
		return pipeWriteSize
	}
	size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	held, err2 := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || err2 != nil {
		return pipeWriteSize
	}
	return min(n, max(size-held, pipeWriteSize))
}

// writeAll writes c.writing to the stream, and stores an error in c.err. It continues after short writes and signals, and waits if
// another process has made the shared descriptor non-blocking. On a terminal it blocks SIGTTOU: any process can set TOSTOP there,
// and then the signal would stop this process when it writes from the background (termios(3)).
func (c *console) writeAll(fd uintptr) {
	if c.fileType == unix.S_IFCHR {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var block, old unix.Sigset_t
		block.Val[0] = 1 << (unix.SIGTTOU - 1)
		if unix.PthreadSigmask(unix.SIG_BLOCK, &block, &old) == nil {
			// PthreadSigmask can't fail: the mask was valid before
			defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
		}
	}
	for len(c.writing) > 0 {
		n, err := unix.Write(int(fd), c.writing[:c.writeSize(int(fd))])
		switch {
		case n > 0:
			c.writing = c.writing[n:]
			c.readerProgress.record()
		case errors.Is(err, unix.EAGAIN):
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, -1)
		case err != nil && !errors.Is(err, unix.EINTR):
			c.err = err
			return
		}
	}
}

// handleResult handles the result of writing block b. It counts the lines that were not written. After a permanent error (EPIPE,
// EIO, EBADF) the console drops all lines. Any other error is a fault that may end.
func (c *console) handleResult(b *block, err error) {
	if err == nil {
		if c.fault.text.Swap(nil) != nil && c.fault.reported {
			c.warn("", "the container's "+c.stream+" is written again")
		}
		return
	}
	countLost := func(src *source, lines int) { src.droppedTotal.Add(uint64(lines)) }
	b.countLines(len(b.data)-len(c.writing), countLost)
	switch {
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO), errors.Is(err, unix.EBADF), errors.Is(err, os.ErrClosed):
		c.mu.Lock()
		for _, b := range c.queue {
			b.countLines(0, countLost)
		}
		c.failed, c.queue, c.sourcesWithDropped = true, nil, nil
		c.wakePumps()
		c.closeDrained()
		c.mu.Unlock()
		c.beginFault(err, "it gets no more lines")
	case c.fault.text.Load() == nil: // The fault has just begun; the stream may be a file on a full disk.
		c.beginFault(err, "lines are missing there until it works")
	}
}

// beginFault stores why lines are missing, and reports it at most once a minute, because a disk may alternate between full
// and not full.
func (c *console) beginFault(err error, effect string) {
	text := fmt.Sprintf("cannot write the container's %s: %s; %s, log files are still written", c.stream, systemErrorText(err), effect)
	c.fault.text.Store(&text)
	c.fault.reported = time.Since(c.fault.reportedAt) >= time.Minute
	if c.fault.reported {
		c.fault.reportedAt = time.Now()
		c.warn("", text)
	}
}

// ConsoleFaults returns why lines are missing on the container's streams now.
func (s *Set) ConsoleFaults() (texts []string) {
	for _, c := range s.consoles {
		if text := c.fault.text.Load(); text != nil {
			texts = append(texts, *text)
		}
	}
	return texts
}

// close lets the writing goroutine write the queued lines, and waits until that goroutine has exited.
func (c *console) close() {
	c.mu.Lock()
	c.closing = true
	c.wakePumps()
	c.wake.Signal()
	c.mu.Unlock()
	<-c.done
}

// format appends line, which has no newline, and a newline to dst. JSON adds the time, the profile and the stream; Prefixed adds
// the profile.
func (c *console) format(dst []byte, mode ConsoleMode, src *source, line []byte) []byte {
	switch mode {
	case JSON:
		dst = append(dst, `{"time":"`...)
		dst = append(dst, c.jsonTime...)
		dst = append(dst, `","profile":`...)
		dst = appendJSON(dst, src.profile)
		dst = append(dst, `,"stream":"`...)
		dst = append(dst, c.stream...)
		dst = append(dst, `","message":`...)
		dst = appendJSON(dst, line)
		return append(dst, "}\n"...)
	case Prefixed:
		dst = append(dst, src.profile...)
		dst = append(dst, " | "...)
	case Raw, Off:
	}
	dst = append(dst, line...)
	return append(dst, '\n')
}

// appendJSON appends s as a JSON string (RFC 8259, section 7).
func appendJSON[T string | []byte](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			dst = utf8.AppendRune(dst, r) // For invalid UTF-8, r is U+FFFD.
			i += size
			continue
		default:
			dst = append(dst, c)
		}
		i++
	}
	return append(dst, '"')
}
