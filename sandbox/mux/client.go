package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"hinit/internal/guard"
)

// Client is the side of a connection that makes requests.
type Client struct {
	conn
	peerHello Hello
	done      chan struct{}

	// Guarded by the mutex of conn.
	next uint32
	err  error
	pong chan struct{} // closed and replaced when a Pong arrives
}

// NewClient exchanges Hellos with the other side. It blocks until the other side answers or the connection is closed.
func NewClient(rw io.ReadWriteCloser) (*Client, error) {
	c := &Client{conn: newConn(rw), done: make(chan struct{}), pong: make(chan struct{})}
	var err error
	if c.peerHello, err = c.exchangeHellos(""); err != nil {
		return nil, err
	}
	c.lastFrame.Store(time.Now().UnixNano())
	guard.Go("reading from a sandbox", func() { c.fail(c.readFrames(c.handleFrame)) })
	return c, nil
}

// Hello returns the hello of the other side.
func (c *Client) Hello() Hello { return c.peerHello }

// Err returns the error with which the connection has ended, or nil if it is still open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// SinceLastFrame returns the time since the last frame arrived.
func (c *Client) SinceLastFrame() time.Duration {
	return time.Duration(time.Now().UnixNano() - c.lastFrame.Load())
}

// Ping sends a Ping, which the other side answers with a Pong. It does not wait for the answer. It blocks as [Writer.Write] does.
func (c *Client) Ping() { _ = c.w.Write(KindPing, 0, nil) }

// Answers asks the other side to send a frame, and reports whether one arrives within the limit.
func (c *Client) Answers(limit time.Duration) bool {
	c.mu.Lock()
	sign := c.pong
	c.mu.Unlock()
	guard.Go("asking the helper for a sign", c.Ping)
	select {
	case <-sign:
		return true
	case <-c.done:
	case <-time.After(limit):
	}
	return false
}

// Close closes the connection. All its foreground commands end.
func (c *Client) Close() error {
	c.fail(io.ErrClosedPipe)
	return nil
}

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
	_ = c.rw.Close()
}

// handleFrame handles the frames that do not belong to a stream.
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
		if c.removeChannel(ch) { // otherwise fail has already finished the channel
			ch.finish(end, nil)
		}
		return nil
	}
	return fmt.Errorf("%w: a frame of kind %d from inside", ErrProtocol, f.Kind)
}

// openTime limits how long the other side may take to receive a request.
const openTime = 30 * time.Second

// Open opens a channel with a request. After an error, the other side has not received the request.
func (c *Client) Open(open any) (*Channel, error) {
	c.mu.Lock()
	c.next++
	ch := newChannel(&c.conn, c.next, false)
	err := c.err
	if err == nil && len(c.channels) >= MaxChannels {
		err = fmt.Errorf("%d commands run already", MaxChannels)
	}
	if err == nil {
		c.channels[ch.id] = ch
	}
	c.mu.Unlock()
	if err == nil {
		defer time.AfterFunc(openTime, guard.Func("giving up a connection", func() { c.fail(errors.New("the other side reads nothing")) })).Stop()
		if err = c.w.WriteJSON(KindOpen, ch.id, open); err != nil {
			c.fail(err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the request was not sent: %w", err)
	}
	return ch, nil
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

// Relay sends the sizes that it receives to the command's terminal. It stops when the channel sizes is closed or the command has
// ended. The channel may be nil.
func (ch *Channel) Relay(sizes <-chan TerminalSize) {
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
