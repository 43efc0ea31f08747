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
type Conn struct {
	r *Reader
	w *Writer

	mu     sync.Mutex
	served map[uint32]*Served
}

// Accept reads a client's hello until the deadline of the connection, and sends the hello that answer returns. It returns nil if the
// client is refused.
func Accept(nc net.Conn, answer func(Hello) Hello) *Conn {
	c := &Conn{r: NewReader(nc), w: NewWriter(nc), served: make(map[uint32]*Served)}
	var hello Hello
	if f, err := c.r.Next(); err != nil || f.Kind != KindHello || json.Unmarshal(f.Data, &hello) != nil {
		return nil
	}
	own := answer(hello)
	own.Version = Version
	if c.w.WriteJSON(KindHello, 0, own) != nil || own.Refused != "" {
		return nil
	}
	return c
}

// Serve handles frames of the client until the client sends no more, or sends an invalid frame. Then it kills the remaining
// requests. It calls accept for each request. accept sets the functions of the Served, starts the work, and does not wait for it.
// keep gets the size of a request before the request is read. If keep returns an error, the client gets the error and the connection
// ends. nil accepts all.
func Serve[T any](c *Conn, keep func(size int) error, accept func(s *Served, open T)) {
	defer c.leave()
	c.r.keep = keep
	for ok := true; ok; {
		f, err := c.r.Next()
		if err != nil && f.Kind == KindOpen {
			newServed(c, f.Channel).Refuse(err)
		}
		if err != nil {
			return
		}
		c.mu.Lock()
		s, n := c.served[f.Channel], len(c.served)
		c.mu.Unlock()
		switch {
		case f.Kind == KindPing:
			ok = c.w.Write(KindPong, 0, nil) == nil
		case f.Kind != KindOpen:
			ok = s == nil || s.take(f) // the channel may just have ended, and the client doesn't know yet
		case s != nil || n >= MaxChannels:
			return
		default:
			var open T
			s := newServed(c, f.Channel)
			if err := json.Unmarshal(f.Data, &open); err != nil {
				s.Refuse(fmt.Errorf("%w: %w", ErrProtocol, err))
				return
			}
			c.mu.Lock()
			c.served[f.Channel] = s
			c.mu.Unlock()
			accept(s, open)
		}
	}
}

// leave kills the requests that the client has left.
func (c *Conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.served {
		s.Kill(-1)
		s.Input.End(io.ErrUnexpectedEOF)
		s.Output.Close()
		s.Errors.Close()
	}
}

// Served is the serving side of a channel: its streams and their windows.
type Served struct {
	c  *Conn
	id uint32

	Input          *Inbox
	Output, Errors *Outlet

	// Resize and Kill carry out requests of the client, and must not block. Kill ends the request with its processes after the
	// grace. A negative grace means that the client has gone; then the request's own grace counts.
	Resize func(columns, rows uint16)
	Kill   func(grace time.Duration)
}

func newServed(c *Conn, id uint32) *Served {
	s := &Served{c: c, id: id}
	s.Input = newInbox(s.Send, KindInput)
	s.Output, s.Errors = newOutlet(s.Send, KindOutput), newOutlet(s.Send, KindErrors)
	return s
}

// Send sends a frame of the channel. It blocks as [Writer.Write] does.
func (s *Served) Send(kind Kind, data []byte) error { return s.c.w.Write(kind, s.id, data) }

// Finish ends the channel.
func (s *Served) Finish(end End) error {
	s.Input.End(io.EOF)
	s.c.mu.Lock()
	delete(s.c.served, s.id)
	s.c.mu.Unlock()
	return s.c.w.WriteJSON(KindEnd, s.id, end)
}

// Refuse ends a channel whose request is refused. It ignores errors, because a client that has gone needs no answer.
func (s *Served) Refuse(why error) { _ = s.Finish(End{Code: 1, Fault: BadOpen, Text: why.Error()}) }

// take handles a frame. It returns false for a frame that breaks the protocol.
func (s *Served) take(f Frame) bool {
	switch f.Kind {
	case KindInput:
		return s.Input.Put(f.Data) == nil
	case KindInputEnd:
		s.Input.End(io.EOF)
		return true
	case KindRoom:
		return addRoom(f.Data, s.Output, s.Errors)
	default:
	}
	n, err := ParseNumber(f.Data)
	switch {
	case err != nil:
		return false
	case f.Kind == KindResize:
		s.Resize(uint16(n>>16), uint16(n))
	case f.Kind == KindKill:
		s.Kill(time.Duration(n) * time.Millisecond)
	default:
		return false
	}
	return true
}

// Each serves every connection of a listener in its own goroutine, until the context ends. If the process has too many descriptors,
// it waits.
func Each(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // ends Accept
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			pause.For(ctx, 50*time.Millisecond) // until a connection has ended
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

// Peer returns the credentials of a unix socket's client, as the kernel reports them (unix(7), SO_PEERCRED).
func Peer(conn net.Conn) (cred *unix.Ucred, err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a unix socket")
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	failed := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(failed, err)
}

// PrivateDir makes a directory that only this user can use, or accepts an existing one.
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
