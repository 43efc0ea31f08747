package mux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/guard"
	"hinit/internal/pause"
)

// Conn is the serving side of a connection.
type Conn struct{ conn }

// Accept exchanges Hellos with a client. The deadline of the connection limits the exchange. Accept sends id as the id of this
// side.
func Accept(nc net.Conn, id string) (*Conn, error) {
	c := &Conn{newConn(nc)}
	_, err := c.exchangeHellos(id)
	return c, err
}

// Serve handles the frames of a client until the client closes the connection or sends an invalid frame. Then it kills the
// requests that are still running. It calls the function accept for each request. accept sets the functions of the Channel and
// starts the work, but does not wait for it. Serve calls the function keep with the size of a request before it reads the
// request. If keep returns an error, the client gets the error and the connection ends. A nil keep accepts all requests.
func Serve[T any](c *Conn, keep func(size int) error, accept func(ch *Channel, open T)) {
	c.r.keep = keep
	_ = c.readFrames(func(f Frame, ch *Channel) error { // a client that violates the protocol gets no answer
		switch {
		case f.Kind == KindPing:
			return c.w.Write(KindPong, 0, nil)
		case f.Kind == KindOpen && ch == nil:
			var open T
			ch = newChannel(&c.conn, f.Channel, true)
			if err := json.Unmarshal(f.Data, &open); err != nil {
				err = fmt.Errorf("%w: %w", ErrProtocol, err)
				ch.Refuse(err)
				return err
			}
			if !c.addChannel(ch) {
				return ErrProtocol
			}
			accept(ch, open)
			return nil
		case ch == nil: // the channel may have ended before the client noticed
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
	for _, ch := range c.channels { // the client has abandoned these requests
		ch.Kill(-1)
		ch.endStreams(io.ErrUnexpectedEOF)
	}
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

// ServeEach serves each connection of a listener in its own goroutine, until the context ends. It returns when all these
// goroutines have ended. If the process or the machine is out of descriptors or memory, it waits and tries again.
func ServeEach(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // makes Accept return
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			pause.For(ctx, 50*time.Millisecond) // wait until some connection has ended
		case err != nil:
			return fmt.Errorf("cannot accept connections: %w", err)
		default:
			all.Go(func() {
				defer guard.Catch("a client")
				serve(c)
			})
		}
	}
}

// PrivateDir creates a directory that only this user can use. It accepts an existing directory if only this user can use it.
func PrivateDir(dir string) error {
	err := unix.Mkdir(dir, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("cannot use %s: it is not a directory that only user %d can use; remove it", dir, os.Geteuid())
	}
	return nil
}
