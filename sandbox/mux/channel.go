package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"hinit/internal/guard"
)

// Channel is one request and its streams, on either side of the connection.
type Channel struct {
	conn    *conn
	id      uint32
	streams map[Kind]*Stream

	Input, Output, Errors *Stream // the client writes Input, and reads Output and Errors

	// Used by the client's side only.
	begun chan struct{}
	done  chan struct{}
	pid   int
	end   End
	err   error

	// Resize and Kill perform requests of the client. The serving side sets them, and they must not block. Kill ends the processes
	// of the request after the grace period. A negative grace means that the client is gone; then the grace period of the request
	// itself applies.
	Resize func(columns, rows uint16)
	Kill   func(grace time.Duration)
}

func newChannel(c *conn, id uint32, serves bool) *Channel {
	ch := &Channel{conn: c, id: id, begun: make(chan struct{}), done: make(chan struct{})}
	ch.Input, ch.Output, ch.Errors = newStream(ch, KindInput, serves), newStream(ch, KindOutput, !serves), newStream(ch, KindErrors, !serves)
	ch.streams = map[Kind]*Stream{KindInput: ch.Input, KindOutput: ch.Output, KindErrors: ch.Errors}
	return ch
}

// Send sends a frame of the channel. It blocks as [Writer.Write] does.
func (ch *Channel) Send(kind Kind, data []byte) error { return ch.conn.w.Write(kind, ch.id, data) }

// endStreams ends all streams. Readers get the error err after the last byte.
func (ch *Channel) endStreams(err error) {
	for _, s := range ch.streams {
		s.End(err)
	}
}

// Stream is one direction of a channel: one side writes frames, and the other side reads them. The reader confirms each frame
// when it has consumed it. At most [unconfirmed] frames may be unconfirmed.
type Stream struct {
	ch    *Channel
	kind  Kind
	reads bool // this side is the reader

	credits chan struct{} // one element for each frame that may be sent now
	closed  chan struct{} // closed when the stream has ended

	mu        sync.Mutex
	frames    chan []byte // received frames that are not consumed yet; closed at the end
	frame     []byte      // the frame that is being read
	frameRead int         // how many bytes of frame were read
	ended     bool
	err       error // returned by Read after the last byte
}

func newStream(ch *Channel, kind Kind, reads bool) *Stream {
	s := &Stream{ch: ch, kind: kind, reads: reads, credits: make(chan struct{}, unconfirmed), closed: make(chan struct{}), frames: make(chan []byte, unconfirmed)}
	for range unconfirmed {
		s.credits <- struct{}{}
	}
	return s
}

// errNoReader means that the stream has ended, and that the other side does not read the data any more.
var errNoReader = errors.New("nothing reads it any more")

// Write sends data. It blocks until the other side may receive another frame, see Stream.
func (s *Stream) Write(data []byte) (n int, err error) {
	for n < len(data) {
		select {
		case <-s.credits:
		case <-s.closed:
			return n, errNoReader
		}
		part := data[n:min(len(data), n+MaxData)]
		if err := s.ch.Send(s.kind, part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// addCredit allows one more frame to be sent. It fails if no frame was unconfirmed.
func (s *Stream) addCredit() error {
	select {
	case s.credits <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: it confirms a frame that was not sent", ErrProtocol)
	}
}

// receive queues a received frame. It fails if the sender has exceeded the limit of unconfirmed frames.
func (s *Stream) receive(data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.reads:
		return fmt.Errorf("%w: a stream in the wrong direction", ErrProtocol)
	case s.ended:
		return nil
	}
	select {
	case s.frames <- data:
		return nil
	default:
		return fmt.Errorf("%w: more than there is room for", ErrProtocol)
	}
}

// End ends the stream on this side: nothing more is written or received. [Stream.Read] returns the error err after the last byte.
// Only the first call has an effect.
func (s *Stream) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.ended, s.err = true, err
		close(s.frames)
		close(s.closed)
	}
}

// confirm tells the other side that a frame was consumed.
func (s *Stream) confirm(frame []byte) {
	release(frame)
	_ = s.ch.Send(KindConfirm, []byte{byte(s.kind)}) // a writer that is gone needs no confirmation
}

// Read implements io.Reader.
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
		s.confirm(s.frame)
		s.frame, s.frameRead = nil, 0
	}
	return n, nil
}

// Deliver writes the received frames to w until the stream ends. After a write error it calls the function failed and discards
// the rest, so that the command does not block after its reader is gone. A nil w discards all data.
func (s *Stream) Deliver(w io.Writer, failed func(error)) (err error) {
	for frame := range s.frames {
		if w != nil && err == nil {
			if _, err = w.Write(frame); err != nil {
				failed(err)
			}
		}
		s.confirm(frame)
	}
	return err
}

// Begun returns a channel that is closed when the command has been started.
func (ch *Channel) Begun() <-chan struct{} { return ch.begun }

// Done returns a channel that is closed when the end of the command is known or the connection is lost. Unread data stays in the
// streams.
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

// End returns how the command ended. Call it only after Done is closed. The error means that the connection was lost.
func (ch *Channel) End() (End, error) { return ch.end, ch.err }

// finish records how the command ended. If the end can't be known any more, it records the error err instead.
func (ch *Channel) finish(end End, err error) {
	ch.end, ch.err = end, err
	close(ch.done)
	ch.endStreams(io.EOF)
}

// Feed copies r to the command's standard input until the channel ends. It closes the input at the end of r. If reading r fails,
// Feed calls the function failed, and closes the input only if failed returns true.
func (ch *Channel) Feed(r io.Reader, failed func(error) (end bool)) {
	guard.Go("reading an input", func() {
		_, err := io.Copy(ch.Input, r)
		if !errors.Is(err, errNoReader) && (err == nil || failed(err)) {
			_ = ch.Send(KindInputEnd, nil) // the reading goroutine reports a lost connection
		}
	})
}

// ForwardSizes sends the sizes that it receives to the command's terminal. It stops when sizes is closed or the command has
// ended. sizes may be nil.
func (ch *Channel) ForwardSizes(sizes <-chan TerminalSize) {
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
				_ = ch.Send(KindResize, EncodeNumber(uint32(size.Columns)<<16|uint32(size.Rows))) // the reading goroutine reports a lost connection
			case <-ch.done:
				return
			}
		}
	})
}

// Outputs copies the command's outputs to two writers until the channel ends. The returned function wait blocks until the end of
// the channel and returns the writers' errors. As soon as a writer fails, Outputs calls the function failed with the error. A nil
// writer discards its output.
func (ch *Channel) Outputs(out, errs io.Writer, failed func(error)) (wait func() error) {
	ended := make(chan error, 2)
	guard.Go("writing an output", func() { ended <- ch.Output.Deliver(out, failed) })
	guard.Go("writing errors", func() { ended <- ch.Errors.Deliver(errs, failed) })
	return func() error { return errors.Join(<-ended, <-ended) }
}

// Finish ends the channel and reports the end to the client.
func (ch *Channel) Finish(end End) error {
	ch.endStreams(io.EOF)
	ch.conn.removeChannel(ch)
	data, err := json.Marshal(end)
	if err != nil {
		return err
	}
	return ch.Send(KindEnd, data)
}

// Refuse ends a channel whose request is refused. It ignores errors, because it does not matter if the client is gone.
func (ch *Channel) Refuse(why error) { _ = ch.Finish(End{Code: 1, Fault: BadOpen, Text: why.Error()}) }
