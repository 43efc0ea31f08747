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

	// The mutex of conn guards these.
	next uint32
	err  error
	pong chan struct{} // closed when the other side has answered a ping
}

// NewClient sends a hello and waits for the hello of the other side. The wait ends when the connection is closed.
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

// Err returns why the connection has ended, or nil while it works.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Heard returns the time since the last frame.
func (c *Client) Heard() time.Duration {
	return time.Duration(time.Now().UnixNano() - c.lastFrame.Load())
}

// Ping makes the other side send a frame. It blocks as Write does.
func (c *Client) Ping() { _ = c.w.Write(KindPing, 0, nil) }

// Answers makes the other side send a frame, and reports whether it does within the limit.
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

// Close ends the connection, and with it all foreground commands.
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

// handleFrame handles the frames of the other side that belong to no stream.
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
		if c.removeChannel(ch) { // otherwise fail has finished it
			ch.finish(end, nil)
		}
		return nil
	}
	return fmt.Errorf("%w: a frame of kind %d from inside", ErrProtocol, f.Kind)
}

// openTime is how long the other side may take to read a request.
const openTime = 30 * time.Second

// Open begins a channel with a request. On an error the other side has not received the request.
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

// Begun returns a channel that is closed when the command has begun.
func (ch *Channel) Begun() <-chan struct{} { return ch.begun }

// Done returns a channel that is closed when the end is known or the connection is lost. The streams keep their content.
func (ch *Channel) Done() <-chan struct{} { return ch.done }

// PID returns the process id inside the container, or 0 before Begun.
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

// End returns how the command ended. Call it after Done. The error means that the connection was lost.
func (ch *Channel) End() (End, error) { return ch.end, ch.err }

// finish records the end, or the reason why it will never be known.
func (ch *Channel) finish(end End, err error) {
	ch.end, ch.err = end, err
	close(ch.done)
	ch.endStreams(io.EOF)
}

// Feed copies r to the standard input until the channel ends, and ends the input at the end of r. It calls failed if r fails. If
// failed returns true, the input ends.
func (ch *Channel) Feed(r io.Reader, failed func(error) (end bool)) {
	guard.Go("reading an input", func() {
		_, err := io.Copy(ch.Input, r)
		if !errors.Is(err, errNoReader) && (err == nil || failed(err)) {
			_ = ch.Send(KindInputEnd, nil) // the reader of the connection reports errors
		}
	})
}

// Relay sends sizes of the terminal, until sizes is closed or the command's end is known. sizes may be nil.
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
				_ = ch.Send(KindResize, EncodeNumber(uint32(size.Columns)<<16|uint32(size.Rows))) // the reader of the connection reports errors
			case <-ch.done:
				return
			}
		}
	})
}

// Outputs writes both outputs until the channel ends. wait waits for that and returns the error of a writer, for which failed was
// called at once. A writer may be nil.
func (ch *Channel) Outputs(out, errs io.Writer, failed func(error)) (wait func() error) {
	ended := make(chan error, 2)
	guard.Go("writing an output", func() { ended <- ch.Output.Deliver(out, failed) })
	guard.Go("writing errors", func() { ended <- ch.Errors.Deliver(errs, failed) })
	return func() error { return errors.Join(<-ended, <-ended) }
}
