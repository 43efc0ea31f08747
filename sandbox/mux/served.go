package mux

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// Served is the serving side of a channel: its streams and their windows.
type Served struct {
	w  *Writer
	id uint32

	Input          *Inbox
	Output, Errors *Outlet
}

// NewServed returns the serving side of a channel that a client has opened.
func NewServed(w *Writer, id uint32) *Served {
	s := &Served{w: w, id: id}
	s.Input = NewInbox(func(n int) { _ = s.Send(KindRoom, Room(KindInput, n)) })
	s.Output, s.Errors = &Outlet{NewCredit(), s, KindOutput}, &Outlet{NewCredit(), s, KindErrors}
	return s
}

// Send sends a frame of the channel. It blocks as [Writer.Write] does.
func (s *Served) Send(kind Kind, data []byte) error { return s.w.Write(kind, s.id, data) }

// Finish ends the channel.
func (s *Served) Finish(end End) error { return s.w.WriteJSON(KindEnd, s.id, end) }

// Leave ends all streams: the client is gone, or wants no more.
func (s *Served) Leave() {
	s.Input.End(io.ErrUnexpectedEOF)
	s.Output.Close()
	s.Errors.Close()
}

// Take takes a frame of a stream. It returns false for another frame, and for one that breaks the protocol.
func (s *Served) Take(f Frame) bool {
	switch f.Kind {
	case KindInput:
		return s.Input.Put(f.Data) == nil
	case KindInputEnd:
		s.Input.End(io.EOF)
		return true
	case KindRoom:
		stream, n, err := ParseRoom(f.Data)
		switch {
		case err != nil:
		case stream == KindOutput:
			return s.Output.Add(n)
		case stream == KindErrors:
			return s.Errors.Add(n)
		}
	default:
	}
	return false
}

// Outlet is an output of a served channel.
type Outlet struct {
	*Credit
	s    *Served
	kind Kind
}

// Write sends data as the client makes room for it.
func (o *Outlet) Write(data []byte) (n int, err error) {
	for n < len(data) {
		room := o.Credit.Take(len(data) - n)
		if room == 0 {
			return n, io.ErrClosedPipe
		}
		if err := o.s.Send(o.kind, data[n:n+room]); err != nil {
			return n, err
		}
		n += room
	}
	return n, nil
}

// Peer asks the kernel who has connected to a unix socket (unix(7), SO_PEERCRED).
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
