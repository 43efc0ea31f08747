package mux

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"hinit/internal/guard"
)

// Channel is one request with its streams. Both sides of a connection have a Channel for it.
type Channel struct {
	conn    *conn
	id      uint32
	streams map[Kind]*Stream

	Input, Output, Errors *Stream // The client writes Input and reads the other two.

	// The fields below are set only on the client's side.
	begun chan struct{}
	done  chan struct{}
	pid   int
	end   End
	err   error

	// Resize and Kill are called on the serving side when the client changes the terminal's size or cancels the request. The
	// serving side sets them; they must not block. Kill ends the processes of the request after the grace. If the grace is
	// negative, the client is gone, and the grace in the request applies.
	Resize func(columns, rows uint16)
	Kill   func(grace time.Duration)
}

func newChannel(c *conn, id uint32, serves bool) *Channel {
	ch := &Channel{conn: c, id: id, begun: make(chan struct{}), done: make(chan struct{})}
	ch.Input, ch.Output, ch.Errors = newStream(ch, KindInput, serves), newStream(ch, KindOutput, !serves), newStream(ch, KindErrors, !serves)
	ch.streams = map[Kind]*Stream{KindInput: ch.Input, KindOutput: ch.Output, KindErrors: ch.Errors}
	return ch
}

// Send sends a frame of the channel. It blocks in the same cases as [Writer.Write].
func (ch *Channel) Send(kind Kind, data []byte) error { return ch.conn.writer.Write(kind, ch.id, data) }

// endStreams ends all streams. Their readers get the error err after the last byte.
func (ch *Channel) endStreams(err error) {
	for _, s := range ch.streams {
		s.End(err)
	}
}

// Stream is one direction of a channel: one side writes frames, and the other reads them. The reader confirms each frame that
// it has consumed. The writer waits while [maxUnconfirmed] frames are not confirmed, so a slow reader delays only its own
// stream.
type Stream struct {
	channel  *Channel
	kind     Kind
	isReader bool // Whether this side is the reader.

	credits chan struct{} // Holds one element for each frame that the writer may send now.
	closed  chan struct{} // Closed when the stream has ended.

	mu        sync.Mutex
	frames    chan []byte // Received frames that are not consumed yet; closed when the stream ends.
	frame     []byte      // Frame that is being read; nil: none.
	frameRead int         // Number of bytes of frame that were read.
	err       error       // Error that Read returns after the last byte.
}

func newStream(ch *Channel, kind Kind, reads bool) *Stream {
	s := &Stream{channel: ch, kind: kind, isReader: reads, credits: make(chan struct{}, maxUnconfirmed), closed: make(chan struct{}), frames: make(chan []byte, maxUnconfirmed)}
	for range maxUnconfirmed {
		s.credits <- struct{}{}
	}
	return s
}

// errNoReader means that the stream has ended because its reader on the other side is gone.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data. It blocks while too many frames are unconfirmed, see [Stream].
func (s *Stream) Write(data []byte) (n int, err error) {
	for n < len(data) {
		select {
		case <-s.credits:
		case <-s.closed:
			return n, errNoReader
		}
		part := data[n:min(len(data), n+MaxData)]
		if err := s.channel.Send(s.kind, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// addCredit lets the writer send one more frame. It returns an error if the other side has confirmed a frame that was never
// sent.
func (s *Stream) addCredit() error {
	select {
	case s.credits <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: it confirms a frame that was not sent", ErrProtocol)
	}
}

// receive queues a frame from the other side. It returns an error if the other side has sent more unconfirmed frames than
// allowed.
func (s *Stream) receive(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.isReader:
		return fmt.Errorf("%w: a stream in the wrong direction", ErrProtocol)
	case isClosed(s.closed):
		return nil
	}
	select {
	case s.frames <- data:
		return nil
	default:
		return fmt.Errorf("%w: more than there is room for", ErrProtocol)
	}
}

// End ends the stream on this side: nothing more is sent or received, and [Stream.Read] returns err after the last byte. Only the
// first call has an effect.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isClosed(s.closed) {
		s.err = err
		close(s.frames)
		close(s.closed)
	}
}

// confirmFrame tells the other side that a frame was consumed, so that it may send another one.
func (s *Stream) confirmFrame(frame []byte) {
	putBuffer(frame)
	_ = s.channel.Send(KindConfirm, []byte{byte(s.kind)}) // Ignore the error: the send fails only if the writer is gone.
}

// Read returns the received data. It blocks until data has come or the stream has ended.
func (s *Stream) Read(p []byte) (n int, err error) {
	if s.frameRead == len(s.frame) {
		frame, more := <-s.frames
		if !more {
			return 0, s.err
		}
		s.frame, s.frameRead = frame, 0
	}
	n = copy(p, s.frame[s.frameRead:])
	if s.frameRead += n; s.frameRead == len(s.frame) {
		s.confirmFrame(s.frame)
		s.frame, s.frameRead = nil, 0
	}
	return n, nil
}

// CopyTo writes the received data to w until the stream ends. If w fails, CopyTo calls failed and drops the rest, because
// the command would block without a reader. If w is nil, it drops everything.
func (s *Stream) CopyTo(w io.Writer, failed func(error)) (err error) {
	for frame := range s.frames {
		if w != nil && err == nil {
			if _, err = w.Write(frame); err != nil {
				failed(err)
			}
		}
		s.confirmFrame(frame)
	}
	return err
}

// Begun returns a channel that is closed when the command has been started.
func (ch *Channel) Begun() <-chan struct{} { return ch.begun }

// Done returns a channel that is closed when the end of the command is known or the connection is lost. The streams may still
// hold unread data then.
func (ch *Channel) Done() <-chan struct{} { return ch.done }

// PID returns the process id inside the container, or 0 before the command has been started.
func (ch *Channel) PID() int {
	if isClosed(ch.begun) {
		return ch.pid
	}
	return 0
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// End returns how the command ended. Call it only after Done is closed. An error means that the connection was lost, so that the
// end is unknown.
func (ch *Channel) End() (End, error) { return ch.end, ch.err }

// finish records how the command ended. If the end is unknown, err is the reason.
func (ch *Channel) finish(end End, err error) {
	ch.end, ch.err = end, err
	close(ch.done)
	ch.endStreams(io.EOF)
}

// FeedInput copies r to the command's standard input until the channel ends, and closes the input at the end of r. If reading r
// fails, FeedInput calls failed. It then closes the input only if failed returns true.
func (ch *Channel) FeedInput(r io.Reader, failed func(error) (end bool)) {
	guard.Go("reading an input", func() {
		_, err := io.Copy(ch.Input, r)
		if !errors.Is(err, errNoReader) && (err == nil || failed(err)) {
			// Ignore the error: the send fails only on a lost connection, which the reading goroutine reports.
			_ = ch.Send(KindInputEnd, nil)
		}
	})
}

// ForwardSizes sends each size from sizes to the command's terminal, until the command has ended. sizes may be nil, but must
// not be closed.
func (ch *Channel) ForwardSizes(sizes <-chan TerminalSize) {
	if sizes == nil {
		return
	}
	guard.Go("passing on sizes of a terminal", func() {
		for {
			select {
			case size := <-sizes:
				// Ignore the error: the send fails only on a lost connection, which the reading goroutine reports.
				_ = ch.Send(KindResize, EncodeNumber(uint32(size.Columns)<<16|uint32(size.Rows)))
			case <-ch.done:
				return
			}
		}
	})
}

// CopyOutputs copies the command's outputs to two writers until the channel ends. The returned wait blocks until then and
// returns the writers' errors. As soon as a writer fails, CopyOutputs calls failed with the error. A nil writer drops its
// output.
func (ch *Channel) CopyOutputs(out, errs io.Writer, failed func(error)) (wait func() error) {
	ended := make(chan error, 2)
	guard.Go("writing an output", func() { ended <- ch.Output.CopyTo(out, failed) })
	guard.Go("writing errors", func() { ended <- ch.Errors.CopyTo(errs, failed) })
	return func() error { return errors.Join(<-ended, <-ended) }
}

// maxText is the maximum number of bytes of [End.Text] that are sent. The text may contain a path, which can be very long.
const maxText = 8 << 10

// Finish ends the channel and tells the client how the request ended. Only the serving side calls it.
func (ch *Channel) Finish(end End) error {
	ch.endStreams(io.EOF)
	ch.conn.removeChannel(ch)
	end.Text = end.Text[:min(len(end.Text), maxText)]
	return ch.conn.writer.WriteJSON(KindEnd, ch.id, end)
}

// Refuse ends a channel without executing its request, and sends the exit code and the reason to the client. It ignores
// errors, because they mean that the client is gone.
func (ch *Channel) Refuse(code int, why error) {
	_ = ch.Finish(End{Code: code, Fault: Refused, Text: why.Error()})
}
