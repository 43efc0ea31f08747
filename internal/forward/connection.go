package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
)

// connection sends syslog messages: one in each datagram, or over a stream with their length before them (RFC 6587).
type connection struct {
	network, address, host string
	secure                 *tls.Config // nil: no encryption
	conn                   net.Conn
	raw                    syscall.RawConn // nil for datagrams
	last                   []sentBatch     // sent batches that the receiver may not have read yet
	again                  bool            // these batches may be lost, so they are sent again
}

// sentBatch is the data of one send.
type sentBatch struct {
	at   time.Time
	data []byte
}

const (
	mostDatagram = 8 << 10 // receivers must accept 480 bytes, and most accept this

	// A working receiver reads data within unreadTime after its machine has acknowledged it. At most unreadSize bytes are not yet
	// read.
	unreadTime = time.Minute
	unreadSize = 8 << 20
)

// Send implements Sink. Over a stream it succeeds when the other machine has acknowledged all bytes, because syslog has no answers.
// If the connection is found to be lost later, Send repeats its last messages, because the receiver may not have read them.
func (s *connection) Send(ctx context.Context, records []Record) error {
	if s.raw != nil && s.gone() != nil {
		s.again = true
		_ = s.Close()
	}
	err := s.send(ctx, records)
	if err != nil {
		s.again = true
		_ = s.Close()
	}
	return err
}

func (s *connection) send(ctx context.Context, records []Record) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	if end, has := ctx.Deadline(); has {
		_ = s.conn.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var data []byte
	for _, b := range s.last {
		if s.again {
			data = append(data, b.data...)
		}
	}
	for i := range records {
		m := syslog(s.host, &records[i])
		if s.raw != nil {
			data = append(fmt.Appendf(data, "%d ", len(m)), m...)
			continue
		}
		if len(m) > mostDatagram {
			m = bytes.ToValidUTF8(m[:mostDatagram], nil)
		}
		if _, err := s.conn.Write(m); err != nil {
			return err
		}
	}
	if s.raw == nil {
		return nil
	}
	if err := s.gone(); err != nil {
		return err
	}
	if _, err := s.conn.Write(data); err != nil {
		return err
	}
	if err := s.acknowledged(ctx); err != nil {
		return err
	}
	if s.again {
		s.again, s.last = false, nil
	}
	s.last = append(s.last, sentBatch{time.Now(), data})
	total := 0
	for i, b := range slices.Backward(s.last) {
		if total += len(b.data); i < len(s.last)-1 && (total > unreadSize || time.Since(b.at) > unreadTime) {
			s.last = slices.Clone(s.last[i+1:])
			break
		}
	}
	return nil
}

// acknowledged waits until the other machine has received all bytes.
func (s *connection) acknowledged(ctx context.Context) error {
	for ctx.Err() == nil {
		left := 0
		var failed error
		if err := s.raw.Control(func(fd uintptr) { left, failed = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); err != nil {
			return err
		}
		if err := errors.Join(failed, s.gone()); err != nil || left == 0 { // a connection that was reset keeps unsent bytes for ever
			return err
		}
		pause.For(ctx, 5*time.Millisecond)
	}
	return ctx.Err()
}

// gone returns an error if the other end has closed the connection. It reads nothing, because TLS may have unread bytes.
func (s *connection) gone() error {
	var news int16
	var failed error
	if err := s.raw.Control(func(fd uintptr) {
		list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, failed = unix.Poll(list, 0)
		news = list[0].Revents
	}); err != nil {
		return err
	}
	switch {
	case failed != nil && !errors.Is(failed, unix.EINTR):
		return failed
	case news&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0:
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (s *connection) connect(ctx context.Context) error {
	if s.conn != nil {
		return nil
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, s.network, s.address)
	if err != nil && s.network == "unixgram" {
		conn, err = dialer.DialContext(ctx, "unix", s.address)
	}
	if err != nil {
		return err
	}
	s.conn, s.raw = conn, nil
	if n := conn.LocalAddr().Network(); n == "tcp" || n == "unix" {
		sc, _ := conn.(syscall.Conn)
		if s.raw, err = sc.SyscallConn(); err != nil {
			return err
		}
	}
	if s.secure != nil {
		secure := tls.Client(conn, s.secure)
		if err := secure.HandshakeContext(ctx); err != nil {
			return explained(err)
		}
		s.conn = secure
	}
	return nil
}

// Close implements Sink.
func (s *connection) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn, s.raw = nil, nil
	return err
}
