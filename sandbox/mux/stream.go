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

// Stream is a client's side of a channel.
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

// Begun is closed when the command has begun, Done when its end is known or the connection is lost.
func (s *Stream) Begun() <-chan struct{} { return s.begun }

// Done is closed when the end is known or the connection is lost. The inboxes keep their content.
func (s *Stream) Done() <-chan struct{} { return s.done }

// PID returns the process id inside, 0 before Begun.
func (s *Stream) PID() int {
	select {
	case <-s.begun:
		return s.pid
	default:
		return 0
	}
}

// End returns how it ended, after Done. The error says that the connection was lost.
func (s *Stream) End() (End, error) { return s.end, s.err }

// Send sends a frame of the channel. It blocks as [Writer.Write] does.
func (s *Stream) Send(kind Kind, data []byte) error { return s.w.Write(kind, s.channel, data) }

// Feed copies r to the standard input until the channel ends, and ends it at the end of r. failed is told what is wrong with r. If it
// returns true the input ends.
func (s *Stream) Feed(r io.Reader, failed func(error) (end bool)) {
	guard.Go("reading an input", func() {
		_, err := io.Copy(s.Input, r)
		if !errors.Is(err, errNoReader) && (err == nil || failed(err)) {
			_ = s.Send(KindInputEnd, nil) // the reader of the connection says what is wrong
		}
	})
}

// Relay sends sizes of the terminal, until the channel of them is closed or the command's end is known. nil has none.
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
				_ = s.Send(KindResize, Number(uint32(size.Columns)<<16|uint32(size.Rows))) // the reader says what is wrong
			case <-s.done:
				return
			}
		}
	})
}

// Outputs writes both outputs as they come, until the channel ends. wait waits for that, and returns what was wrong with a writer, of which
// failed is told at once. A writer may be nil.
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

// finish notes the end, or why it will never be known.
func (s *Stream) finish(end End, err error) {
	s.once.Do(func() {
		s.end, s.err = end, err
		s.Input.Close()
		close(s.done)
		s.Output.End(io.EOF)
		s.Errors.End(io.EOF)
	})
}

// Inbox holds what has come of a stream and was not taken yet.
type Inbox struct {
	send func(Kind, []byte) error
	kind Kind

	mu    sync.Mutex
	cond  sync.Cond
	data  []byte
	at    int // how much of data was taken
	spare []byte
	owed  int   // bytes that have come and for which no room was given back
	taken int   // of these, how many were taken
	err   error // how the stream ended; nil before
}

// newInbox returns an empty one. By send the other side is told that it may send more.
func newInbox(send func(Kind, []byte) error, kind Kind) *Inbox {
	b := &Inbox{send: send, kind: kind}
	b.cond.L = &b.mu
	return b
}

// Put takes what has come. It fails for more than there is room for.
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

// End says that no more will come, and what [Inbox.Read] returns then: io.EOF, or an error. The first call counts.
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

// took makes room for n bytes that were taken, and gives the lock up.
func (b *Inbox) took(n int) {
	b.taken += n
	room := 0
	if b.taken >= Window/4 && b.err == nil {
		room, b.taken = b.taken, 0
		b.owed -= room
	}
	b.mu.Unlock()
	if room > 0 {
		_ = b.send(KindRoom, Room(b.kind, room)) // a reader that is gone sends nothing more
	}
}

// Read implements io.Reader. It makes room for more as data is read.
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

// WriteTo writes what comes until the stream ends, and makes room for more as it does. nil drops it.
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

// Deliver is WriteTo that drops the rest after an error, of which it tells before: no command is to wait for a reader that is gone.
func (b *Inbox) Deliver(w io.Writer, failed func(error)) (err error) {
	if _, err = b.WriteTo(w); err != nil {
		failed(err)
		_, _ = b.WriteTo(nil)
	}
	return err
}

// Outlet is a stream as its sender has it, with how much more the other side takes.
type Outlet struct {
	send func(Kind, []byte) error
	kind Kind

	mu     sync.Mutex
	cond   sync.Cond
	n      int // of bytes that may be sent
	closed bool
}

func newOutlet(send func(Kind, []byte) error, kind Kind) *Outlet {
	o := &Outlet{send: send, kind: kind, n: Window}
	o.cond.L = &o.mu
	return o
}

// errNoReader says that the other side takes no more of a stream.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data as the other side makes room for it.
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

// take waits until something may be sent and returns how much of n; 0 when nothing will be any more.
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

// add makes room. It reports false for more than a window.
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

// addRoom takes the data of a KindRoom, which is for one of the streams. It reports false for one that breaks the protocol.
func addRoom(data []byte, streams ...*Outlet) bool {
	at := slices.IndexFunc(streams, func(o *Outlet) bool { return len(data) == 5 && o.kind == Kind(data[0]) })
	return at >= 0 && streams[at].add(int(min(binary.BigEndian.Uint32(data[1:]), Window+1)))
}
