package mux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"hinit/internal/guard"
)

// Client is the side of a connection that makes requests.
type Client struct {
	conn  io.ReadWriteCloser
	w     *Writer
	hello Hello
	heard atomic.Int64 // time of the last frame, in nanoseconds
	done  chan struct{}

	mu      sync.Mutex
	streams map[uint32]*Stream
	next    uint32
	err     error
	pong    chan struct{} // closed when the other side has answered a ping
}

// NewClient sends a hello and waits for the hello of the other side. The wait ends when the connection is closed.
func NewClient(conn io.ReadWriteCloser) (*Client, error) {
	c := &Client{conn: conn, w: NewWriter(conn), done: make(chan struct{}), pong: make(chan struct{}), streams: make(map[uint32]*Stream)}
	_ = c.w.WriteJSON(KindHello, 0, Hello{Version: Version}) // the other side may refuse before it reads this
	r := NewReader(conn)
	f, err := r.Next()
	if err != nil {
		return nil, fmt.Errorf("cannot hear from the other side: %w", err)
	}
	switch {
	case f.Kind != KindHello || json.Unmarshal(f.Data, &c.hello) != nil:
		return nil, fmt.Errorf("cannot talk to the other side: %w", ErrProtocol)
	case c.hello.Refused != "":
		return nil, &RefusedError{c.hello.Refused, c.hello.Code}
	case c.hello.Version != Version:
		return nil, fmt.Errorf("cannot talk to the other side: it speaks version %d, this is version %d", c.hello.Version, Version)
	}
	c.heard.Store(time.Now().UnixNano())
	guard.Go("reading from a sandbox", func() { c.fail(c.read(r)) })
	return c, nil
}

// RefusedError means that the other side does not serve this client.
type RefusedError struct {
	Text string
	Code int // exit code for this refusal, or 0
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Text }

// Hello returns the hello of the other side.
func (c *Client) Hello() Hello { return c.hello }

// Err returns why the connection has ended, or nil while it works.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Heard returns the time since the last frame.
func (c *Client) Heard() time.Duration { return time.Duration(time.Now().UnixNano() - c.heard.Load()) }

// Ping makes the other side send a frame. It blocks as Write does.
func (c *Client) Ping() { _ = c.w.Write(KindPing, 0, nil) }

// Answers makes the other side send a frame, and reports whether it does within the limit.
func (c *Client) Answers(limit time.Duration) bool {
	c.mu.Lock()
	sign := c.pong
	c.mu.Unlock()
	guard.Go("asking the program inside for a sign", c.Ping)
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
	for _, s := range c.streams {
		s.finish(End{}, err)
	}
	close(c.done)
	_ = c.conn.Close()
}

func (c *Client) read(r *Reader) error {
	for {
		f, err := r.Next()
		if err != nil {
			return err
		}
		c.heard.Store(time.Now().UnixNano())
		if f.Kind == KindPong {
			c.mu.Lock()
			close(c.pong)
			c.pong = make(chan struct{})
			c.mu.Unlock()
			continue
		}
		c.mu.Lock()
		s := c.streams[f.Channel]
		c.mu.Unlock()
		if s == nil {
			return fmt.Errorf("%w: a frame for channel %d, which is not open", ErrProtocol, f.Channel)
		}
		if err := c.take(s, f); err != nil {
			return err
		}
	}
}

func (c *Client) take(s *Stream, f Frame) error {
	switch f.Kind {
	case KindBegun:
		pid, err := ParseNumber(f.Data)
		if err != nil {
			return err
		}
		return s.begin(int(pid))
	case KindOutput:
		return s.Output.Put(f.Data)
	case KindErrors:
		return s.Errors.Put(f.Data)
	case KindRoom:
		if !addRoom(f.Data, s.Input) {
			return fmt.Errorf("%w: too much room", ErrProtocol)
		}
		return nil
	case KindEnd:
		var end End
		if err := json.Unmarshal(f.Data, &end); err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
		c.mu.Lock()
		delete(c.streams, f.Channel)
		c.mu.Unlock()
		s.finish(end, nil)
		return nil
	default:
		return fmt.Errorf("%w: a frame of kind %d from inside", ErrProtocol, f.Kind)
	}
}

// openTime is how long the other side may take to read a request.
const openTime = 30 * time.Second

// Open begins a channel with a request. On an error the other side has not received the request.
func (c *Client) Open(open any) (*Stream, error) {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return nil, fmt.Errorf("the request was not sent: %w", c.err)
	}
	if len(c.streams) >= MaxChannels {
		defer c.mu.Unlock()
		return nil, fmt.Errorf("the request was not sent: %d commands run already", MaxChannels)
	}
	for c.next++; c.next == 0 || c.streams[c.next] != nil; {
		c.next++
	}
	s := newStream(c.w, c.next)
	c.streams[s.channel] = s
	c.mu.Unlock()
	defer time.AfterFunc(openTime, guard.Func("giving up a connection", func() { c.fail(errors.New("the other side reads nothing")) })).Stop()
	if err := c.w.WriteJSON(KindOpen, s.channel, open); err != nil {
		c.fail(err)
		return nil, fmt.Errorf("the request was not sent: %w", err)
	}
	return s, nil
}
