package mux

import (
	"encoding/json"
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
