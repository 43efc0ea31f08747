package mux

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// conn has the common fields of both sides of a connection.
type conn struct {
	rw        io.ReadWriteCloser
	r         *Reader
	w         *Writer
	lastFrame atomic.Int64 // time of the last frame, in nanoseconds

	mu       sync.Mutex
	channels map[uint32]*Channel
}

func newConn(rw io.ReadWriteCloser) conn {
	return conn{rw: rw, r: NewReader(rw), w: NewWriter(rw), channels: make(map[uint32]*Channel)}
}

// exchangeHellos sends a hello with the identity of this side, and returns the hello of the other side.
func (c *conn) exchangeHellos(id string) (h Hello, err error) {
	_ = c.w.WriteJSON(KindHello, 0, Hello{Version, id}) // the answer of the other side explains a fault better than this error
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

// readFrames handles frames until the connection ends or a frame breaks the protocol. It handles the frames of streams, which are
// the same on both sides, and passes the rest to other. The channel of a frame is nil if it is not open.
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
		case err != nil: // keep has refused the request
			newChannel(c, f.Channel, true).Refuse(err)
		case f.Kind == KindConfirm && ch == nil: // the channel has just ended
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

// addChannel adds a channel, and reports whether its number is free and there is room for it.
func (c *conn) addChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channels[ch.id] != nil || len(c.channels) >= MaxChannels {
		return false
	}
	c.channels[ch.id] = ch
	return true
}

// removeChannel removes a channel, and reports whether it was there. Only the caller that has removed a channel may finish it.
func (c *conn) removeChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.channels[ch.id] == ch
	delete(c.channels, ch.id)
	return was
}

// Channel is one request, on either side.
type Channel struct {
	conn    *conn
	id      uint32
	streams map[Kind]*Stream

	Input, Output, Errors *Stream // the client writes the input, and reads the others

	// The client's side.
	begun chan struct{}
	done  chan struct{}
	pid   int
	end   End
	err   error

	// Resize and Kill carry out requests of the client, and must not block. The serving side sets them. Kill ends the request
	// with its processes after the grace. A negative grace means that the client has gone; then the request's own grace counts.
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

// endStreams ends all streams. Readers of the received ones get the error.
func (ch *Channel) endStreams(err error) {
	for _, s := range ch.streams {
		s.End(err)
	}
}
