package mux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// conn is the part of a connection that both sides share.
type conn struct {
	transport io.ReadWriteCloser
	reader    *Reader
	writer    *Writer
	lastFrame atomic.Int64 // Arrival of the last frame, in nanoseconds since 1970.

	mu       sync.Mutex
	channels map[uint32]*Channel
}

// newConn returns a connection. The frames of the kind long that it receives may be longer than [MaxData].
func newConn(rw io.ReadWriteCloser, long Kind) conn {
	r := NewReader(rw)
	r.longKind = long
	return conn{transport: rw, reader: r, writer: NewWriter(rw), channels: make(map[uint32]*Channel)}
}

// exchangeHellos sends a Hello with the id of this side, and returns the Hello of the other side.
func (c *conn) exchangeHellos(id string) (h Hello, err error) {
	_ = c.writer.WriteJSON(KindHello, 0, Hello{Version, id}) // Ignore the error: reading the answer then fails with a better one.
	f, err := c.reader.Next()
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

// readFrames reads frames until the connection ends or a frame violates the protocol. It handles the frames of streams
// itself, because both sides treat them alike. For every other frame it calls the function other with the frame and its
// channel. The channel is nil if it is not open.
func (c *conn) readFrames(other func(Frame, *Channel) error) error {
	for {
		f, err := c.reader.Next()
		if err != nil && f.Kind != KindOpen {
			return err
		}
		c.lastFrame.Store(time.Now().UnixNano())
		c.mu.Lock()
		ch := c.channels[f.Channel]
		c.mu.Unlock()
		switch {
		case err != nil: // acceptSize has refused the request.
			newChannel(c, f.Channel, true).Refuse(1, err)
		case f.Kind == KindConfirm && ch == nil: // The channel was closed before the confirmation arrived, so ignore it.
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

// addChannel registers a channel. It returns false if its number is in use, or if there are too many channels.
func (c *conn) addChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.channels[ch.id] != nil || len(c.channels) >= MaxChannels {
		return false
	}
	c.channels[ch.id] = ch
	return true
}

// removeChannel unregisters a channel, and reports whether the channel was registered. If several goroutines call it for one
// channel, only the first gets true and may finish the channel.
func (c *conn) removeChannel(ch *Channel) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.channels[ch.id] == ch
	delete(c.channels, ch.id)
	return was
}

// Client is the side of a connection that makes requests.
type Client struct {
	conn
	done    chan struct{}
	pinging atomic.Bool // Whether a Ping is being sent.

	// The mutex of conn guards the fields below.
	nextChannel uint32
	err         error
	pong        chan struct{} // Closed and replaced when a Pong arrives.
}

// NewClient makes a client and exchanges Hello messages. The other side must have the given id; "" accepts any. NewClient
// blocks until the other side answers or the connection is closed. After an error, the caller closes the connection.
func NewClient(rw io.ReadWriteCloser, id string) (*Client, error) {
	c := &Client{conn: newConn(rw, KindEnd), done: make(chan struct{}), pong: make(chan struct{})}
	h, err := c.exchangeHellos("")
	if err == nil && id != "" && h.ID != id {
		err = errors.New("another program answers")
	}
	if err != nil {
		return nil, err
	}
	c.lastFrame.Store(time.Now().UnixNano())
	guard.Go("reading from a sandbox", func() { c.fail(c.readFrames(c.handleFrame)) })
	return c, nil
}

// Err returns the error that has ended the connection, or nil while it is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// SinceLastFrame returns the time since the last frame arrived. A long time suggests that the other side hangs.
func (c *Client) SinceLastFrame() time.Duration {
	return time.Duration(time.Now().UnixNano() - c.lastFrame.Load())
}

// Ping asks the other side to send a frame (Pong), and does not wait for it. If the other side has not read the last Ping
// yet, Ping does nothing.
func (c *Client) Ping() {
	if c.pinging.CompareAndSwap(false, true) {
		guard.Go("asking the helper for a sign", func() {
			defer c.pinging.Store(false)
			// Ignore the error: the send fails only on a lost connection, which the reading goroutine reports.
			_ = c.writer.Write(KindPing, 0, nil)
		})
	}
}

// AnswersWithin sends a Ping, and reports whether any frame arrives within limit.
func (c *Client) AnswersWithin(limit time.Duration) bool {
	c.mu.Lock()
	sign := c.pong
	c.mu.Unlock()
	c.Ping()
	select {
	case <-sign:
		return true
	case <-c.done:
	case <-time.After(limit):
	}
	return false
}

// Close closes the connection, which ends all its foreground commands.
func (c *Client) Close() { c.fail(io.ErrClosedPipe) }

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return
	}
	c.err = err
	for _, ch := range c.channels {
		ch.finish(End{}, err)
	}
	clear(c.channels)
	close(c.done)
	_ = c.transport.Close()
}

// handleFrame handles the frames that belong to no stream.
func (c *Client) handleFrame(f Frame, ch *Channel) error {
	switch {
	case f.Kind == KindPong:
		c.mu.Lock()
		defer c.mu.Unlock()
		close(c.pong)
		c.pong = make(chan struct{})
		return nil
	case ch == nil:
		return fmt.Errorf("%w: a frame for channel %d, which is not open", ErrProtocol, f.Channel)
	case f.Kind == KindBegun && !isClosed(ch.begun):
		pid, err := ParseNumber(f.Data)
		ch.pid = int(pid)
		close(ch.begun)
		return err
	case f.Kind == KindEnd:
		var end End
		if err := json.Unmarshal(f.Data, &end); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		if c.removeChannel(ch) { // If the channel is already removed, fail has finished it.
			ch.finish(end, nil)
		}
		return nil
	}
	return fmt.Errorf("%w: a frame of kind %d from inside", ErrProtocol, f.Kind)
}

// openTimeout limits how long Open waits for the other side to read a request.
const openTimeout = 30 * time.Second

// Open sends a request and returns its channel. After an error, the other side has not received the request, so it can be sent
// again.
func (c *Client) Open(open any) (*Channel, error) {
	c.mu.Lock()
	c.nextChannel++
	ch := newChannel(&c.conn, c.nextChannel, false)
	err := c.err
	if err == nil && len(c.channels) >= MaxChannels {
		err = fmt.Errorf("%d commands run already", MaxChannels)
	}
	if err == nil {
		c.channels[ch.id] = ch
	}
	c.mu.Unlock()
	if err == nil {
		defer time.AfterFunc(openTimeout, guard.WrapFunc("giving up a connection", func() { c.fail(errors.New("the other side reads nothing")) })).Stop()
		if err = c.writer.WriteJSON(KindOpen, ch.id, open); err != nil {
			c.fail(err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the request was not sent: %w", err)
	}
	return ch, nil
}

// Conn is the serving side of a connection.
type Conn struct{ conn }

// Accept exchanges Hello messages with a client, and sends id as the id of this side. The caller sets a deadline on nc to
// limit the wait.
func Accept(nc net.Conn, id string) (*Conn, error) {
	c := &Conn{newConn(nc, KindOpen)}
	_, err := c.exchangeHellos(id)
	return c, err
}

// Serve handles the frames of a client until the client closes the connection or violates the protocol. Then it kills the
// requests that still run.
//
// Serve calls accept for each request. accept sets the functions of the Channel and starts the work without waiting for it.
// Before that, Serve calls keep with the size of the request. If keep returns an error, the client gets the error and the
// connection ends. If keep is nil, all requests are accepted.
func Serve[T any](c *Conn, keep func(size int) error, accept func(ch *Channel, open T)) {
	c.reader.acceptSize = keep
	_ = c.readFrames(func(f Frame, ch *Channel) error { // Ignore the error: a client that violates the protocol gets no answer.
		switch {
		case f.Kind == KindPing:
			return c.writer.Write(KindPong, 0, nil)
		case f.Kind == KindOpen && ch == nil:
			var open T
			ch = newChannel(&c.conn, f.Channel, true)
			if err := json.Unmarshal(f.Data, &open); err != nil {
				err = fmt.Errorf("%w: %w", ErrProtocol, err)
				ch.Refuse(1, err)
				return err
			}
			if !c.addChannel(ch) {
				return ErrProtocol
			}
			accept(ch, open)
			return nil
		case ch == nil: // The client sent the frame before it knew that the channel had ended.
			return nil
		case f.Kind == KindInputEnd:
			ch.Input.End(io.EOF)
			return nil
		}
		n, err := ParseNumber(f.Data)
		switch {
		case err != nil:
		case f.Kind == KindResize:
			ch.Resize(uint16(n>>16), uint16(n))
		case f.Kind == KindKill:
			ch.Kill(time.Duration(n) * time.Millisecond)
		default:
			err = ErrProtocol
		}
		return err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.channels { // The client is gone, so kill its requests.
		ch.Kill(-1)
		ch.endStreams(io.ErrUnexpectedEOF)
	}
}

// ServeEach serves each connection of a listener in a goroutine, until ctx ends. It returns when all these goroutines have ended.
// If descriptors or memory run out, it waits and tries again.
func ServeEach(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // Closing the listener makes Accept return.
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			pause.For(ctx, 50*time.Millisecond) // Wait, because another connection may end and free a descriptor.
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", err)
		default:
			all.Go(func() {
				defer guard.CatchPanic("a client")
				serve(c)
			})
		}
	}
}
