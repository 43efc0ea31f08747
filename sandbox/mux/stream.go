package mux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"hinit/internal/guard"
)

// Stream is the client's side of a channel.
type Stream struct {
	w       *Writer
	channel uint32

	Output, Errors *Inbox
	Input          *Outlet

	once  sync.Once
	begun chan struct{}
	pid   int
	done  chan struct{}
	end   End
	err   error
}

func newStream(w *Writer, channel uint32) *Stream {
	s := &Stream{w: w, channel: channel, begun: make(chan struct{}), done: make(chan struct{})}
	s.Input = newOutlet(s.Send, KindInput)
	s.Output, s.Errors = newInbox(s.Send, KindOutput), newInbox(s.Send, KindErrors)
	return s
}

// Begun returns a channel that is closed when the command has begun.
func (s *Stream) Begun() <-chan struct{} { return s.begun }

// Done returns a channel that is closed when the end is known or the connection is lost. The inboxes keep their content.
func (s *Stream) Done() <-chan struct{} { return s.done }

// PID returns the process id inside the container, or 0 before Begun.
func (s *Stream) PID() int {
	select {
	case <-s.begun:
		return s.pid
	default:
		return 0
	}
}

// End returns how the command ended. Call it after Done. The error means that the connection was lost.
func (s *Stream) End() (End, error) { return s.end, s.err }

// Send sends a frame of the channel. It blocks as [Writer.Write] does.
func (s *Stream) Send(kind Kind, data []byte) error { return s.w.Write(kind, s.channel, data) }

// Feed copies r to the standard input until the channel ends, and ends the input at the end of r. It calls failed if r fails. If
// failed returns true, the input ends.
func (s *Stream) Feed(r io.Reader, failed func(error) (end bool)) {
	guard.Go("reading an input", func() {
		_, err := io.Copy(s.Input, r)
		if !errors.Is(err, errNoReader) && (err == nil || failed(err)) {
			_ = s.Send(KindInputEnd, nil) // the reader of the connection reports errors
		}
	})
}

// Relay sends sizes of the terminal, until sizes is closed or the command's end is known. sizes may be nil.
func (s *Stream) Relay(sizes <-chan TerminalSize) {
	if sizes == nil {
		return
	}
	guard.Go("passing on sizes of a terminal", func() {
		for {
			select {
			case size, more := <-sizes:
				if !more {
					return
				}
				_ = s.Send(KindResize, Number(uint32(size.Columns)<<16|uint32(size.Rows))) // the reader of the connection reports errors
			case <-s.done:
				return
			}
		}
	})
}

// Outputs writes both outputs until the channel ends. wait waits for that and returns the error of a writer, for which failed was
// called at once. A writer may be nil.
func (s *Stream) Outputs(out, errs io.Writer, failed func(error)) (wait func() error) {
	ended := make(chan error, 2)
	guard.Go("writing an output", func() { ended <- s.Output.Deliver(out, failed) })
	guard.Go("writing errors", func() { ended <- s.Errors.Deliver(errs, failed) })
	return func() error { return errors.Join(<-ended, <-ended) }
}

func (s *Stream) begin(pid int) error {
	select {
	case <-s.begun:
		return fmt.Errorf("%w: it begins twice", ErrProtocol)
	default:
	}
	s.pid = pid
	close(s.begun)
	return nil
}

// finish records the end, or the reason why it will never be known.
func (s *Stream) finish(end End, err error) {
	s.once.Do(func() {
		s.end, s.err = end, err
		s.Input.Close()
		close(s.done)
		s.Output.End(io.EOF)
		s.Errors.End(io.EOF)
	})
}

// Inbox holds received bytes of a stream that were not read yet.
type Inbox struct {
	send func(Kind, []byte) error
	kind Kind

	mu    sync.Mutex
	cond  sync.Cond
	data  []byte
	at    int // number of bytes in data that were read
	spare []byte
	owed  int   // received bytes whose room was not returned to the sender yet
	taken int   // bytes among them that were read
	err   error // how the stream ended; nil before
}

// newInbox returns an empty Inbox. It calls send to tell the other side that it may send more.
func newInbox(send func(Kind, []byte) error, kind Kind) *Inbox {
	b := &Inbox{send: send, kind: kind}
	b.cond.L = &b.mu
	return b
}

// Put adds received bytes. It fails if they exceed the window.
func (b *Inbox) Put(data []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owed+len(data) > Window {
		return fmt.Errorf("%w: more than there is room for", ErrProtocol)
	}
	b.owed += len(data)
	b.data = append(b.data, data...)
	b.cond.Signal()
	return nil
}

// End marks the end of the stream. err is the result of [Inbox.Read] after the last byte: io.EOF, or an error. The first call
// counts.
func (b *Inbox) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.cond.Broadcast()
}

// wait waits for data or the end. The caller holds the lock.
func (b *Inbox) wait() {
	for b.at == len(b.data) && b.err == nil {
		b.cond.Wait()
	}
}

// took records that n bytes were read, and tells the other side to send more when enough were. It releases the lock.
func (b *Inbox) took(n int) {
	b.taken += n
	room := 0
	if b.taken >= Window/4 && b.err == nil {
		room, b.taken = b.taken, 0
		b.owed -= room
	}
	b.mu.Unlock()
	if room > 0 {
		_ = b.send(KindRoom, Room(b.kind, room)) // a reader that has gone sends nothing more
	}
}

// Read implements io.Reader. As bytes are read, the other side may send more.
func (b *Inbox) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	b.wait()
	if b.at == len(b.data) {
		defer b.mu.Unlock()
		return 0, b.err
	}
	n = copy(p, b.data[b.at:])
	if b.at += n; b.at == len(b.data) {
		b.data, b.at = b.data[:0], 0
	}
	b.took(n)
	return n, nil
}

// WriteTo writes the stream to w until the stream ends. As bytes are written, the other side may send more. A nil w drops them.
func (b *Inbox) WriteTo(w io.Writer) (n int64, err error) {
	for err == nil {
		b.mu.Lock()
		b.wait()
		data := b.data[b.at:]
		b.data, b.at, b.spare = b.spare[:0], 0, nil
		b.mu.Unlock()
		if len(data) == 0 {
			break
		}
		if w != nil {
			var wrote int
			wrote, err = w.Write(data)
			n += int64(wrote)
		}
		b.mu.Lock()
		b.spare = data
		b.took(len(data))
	}
	return n, err
}

// Deliver is like WriteTo. After an error it calls failed and drops the rest, so that no command waits for a reader that has gone.
func (b *Inbox) Deliver(w io.Writer, failed func(error)) (err error) {
	if _, err = b.WriteTo(w); err != nil {
		failed(err)
		_, _ = b.WriteTo(nil)
	}
	return err
}

// Outlet is the sender's side of a stream. It knows how many bytes the other side accepts.
type Outlet struct {
	send func(Kind, []byte) error
	kind Kind

	mu     sync.Mutex
	cond   sync.Cond
	n      int // number of bytes that may be sent
	closed bool
}

func newOutlet(send func(Kind, []byte) error, kind Kind) *Outlet {
	o := &Outlet{send: send, kind: kind, n: Window}
	o.cond.L = &o.mu
	return o
}

// errNoReader means that the other side accepts no more of a stream.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data as fast as the other side accepts it.
func (o *Outlet) Write(data []byte) (n int, err error) {
	for n < len(data) {
		room := o.take(len(data) - n)
		if room == 0 {
			return n, errNoReader
		}
		if err := o.send(o.kind, data[n:n+room]); err != nil {
			return n, err
		}
		n += room
	}
	return n, nil
}

// take waits until bytes may be sent, and returns how many of n. It returns 0 when no more may ever be sent.
func (o *Outlet) take(n int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.n == 0 && !o.closed {
		o.cond.Wait()
	}
	if o.closed {
		return 0
	}
	n = min(n, o.n, MaxData)
	o.n -= n
	return n
}

// add allows n more bytes. It returns false if that exceeds a window.
func (o *Outlet) add(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n > Window-o.n {
		return false
	}
	o.n += n
	o.cond.Signal()
	return true
}

// Close ends all waiting.
func (o *Outlet) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.cond.Broadcast()
}

// addRoom applies the data of a KindRoom to one of the streams. It returns false for data that break the protocol.
func addRoom(data []byte, streams ...*Outlet) bool {
	at := slices.IndexFunc(streams, func(o *Outlet) bool { return len(data) == 5 && o.kind == Kind(data[0]) })
	return at >= 0 && streams[at].add(int(min(binary.BigEndian.Uint32(data[1:]), Window+1)))
}
