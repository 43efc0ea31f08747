package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// conn is the part of a connection that the client and the serving side have in common.
type conn struct {
	rw        io.ReadWriteCloser
	r         *Reader
	w         *Writer
	lastFrame atomic.Int64 // when the last frame arrived, in nanoseconds since 1970

	mu       sync.Mutex
	channels map[uint32]*Channel
}

func newConn(rw io.ReadWriteCloser) conn {
	return conn{rw: rw, r: NewReader(rw), w: NewWriter(rw), channels: make(map[uint32]*Channel)}
}

// exchangeHellos sends a Hello with this side's id, and returns the Hello of the other side.
func (c *conn) exchangeHellos(id string) (h Hello, err error) {
	_ = c.w.WriteJSON(KindHello, 0, Hello{Version, id}) // ignore the error: the other side's answer explains a failure better
	f, err := c.r.Next()
	switch {
	case err != nil:
		return h, fmt.Errorf("cannot hear from the other side: %w", err)
	case f.Kind != KindHello || json.Unmarshal(f.Data, &h) != nil:
		return h, fmt.Errorf("cannot talk to the other side: %w", ErrProtocol)
	case h.Version != Version:
		return h, fmt.Errorf("cannot talk to the other side: it speaks version %d, this is version %d", h.Version, Version)
	}
	return h, nil
}

// readFrames reads frames until the connection ends or a frame violates the protocol. It handles the frames of streams, which are
// the same on both sides. It calls the function other for all other frames, with their channel, or nil if the channel is not
// open.
func (c *conn) readFrames(other func(Frame, *Channel) error) error {
	for {
		f, err := c.r.Next()
		if err != nil && f.Kind != KindOpen {
			return err
		}
		c.lastFrame.Store(time.Now().UnixNano())
		c.mu.Lock()
		ch := c.channels[f.Channel]
		c.mu.Unlock()
		switch {
		case err != nil: // r.keep has refused the request
			newChannel(c, f.Channel, true).Refuse(err)
		case f.Kind == KindConfirm && ch == nil: // the channel has just been closed
		case f.Kind == KindConfirm && len(f.Data) == 1 && ch.streams[Kind(f.Data[0])] != nil:
			err = ch.streams[Kind(f.Data[0])].addCredit()
		case ch != nil && ch.streams[f.Kind] != nil:
			err = ch.streams[f.Kind].receive(f.Data)
		default:
			err = other(f, ch)
		}
		if err != nil {
			return err
		}
	}
}

// addChannel registers a channel. It returns false if the number is in use or there are too many channels.
func (c *conn) addChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channels[ch.id] != nil || len(c.channels) >= MaxChannels {
		return false
	}
	c.channels[ch.id] = ch
	return true
}

// removeChannel unregisters a channel, and reports whether it was registered. Only the caller that gets true may finish the
// channel.
func (c *conn) removeChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.channels[ch.id] == ch
	delete(c.channels, ch.id)
	return was
}

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
