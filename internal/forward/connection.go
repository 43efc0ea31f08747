package forward

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/pause"
)

// syslogSink is a Sink that sends syslog messages. Each datagram contains one message. Over a stream, the length precedes each
// message (RFC 6587).
type syslogSink struct {
	network, address, host string
	secure                 *tls.Config // nil: no encryption
	conn                   net.Conn
	raw                    syscall.RawConn // raw connection of a stream; nil for datagrams
	unread                 []sentBatch     // sent batches that the receiver may not have read yet, oldest first
	size                   int             // size of the batches in unread, in bytes
}

// sentBatch is the data that was sent by one call of Send.
type sentBatch struct {
	at   time.Time
	data []byte
}

const (
	maxDatagram = 8 << 10 // maximum message size in bytes; RFC 5424 only requires 480, but most receivers accept 8 KiB

	// unreadTime is the maximum time that a working receiver takes to read data that the kernel of its machine has acknowledged.
	// The field unread keeps each batch for that time, but no more than unreadSize bytes in total.
	unreadTime = time.Minute
	unreadSize = 8 << 20
)

// Send implements Sink. After an error, it closes the connection. If the connection is lost, the receiver may not have read the
// last messages, so Send repeats them over the next connection.
func (s *syslogSink) Send(ctx context.Context, records []Record) error {
	if s.raw != nil {
		if _, err := s.unsent(); err != nil {
			_ = s.Close()
		}
	}
	repeat := s.conn == nil
	err := s.connect(ctx)
	if err == nil {
		err = s.write(ctx, records, repeat)
	}
	if err != nil {
		_ = s.Close()
	}
	return err
}

// write sends the records over the open connection. Syslog has no answers, so over a stream write returns when the other machine
// has acknowledged all bytes. If repeat is set, write sends the batches in unread again before the records.
func (s *syslogSink) write(ctx context.Context, records []Record, repeat bool) error {
	conn := s.conn
	_ = conn.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	var data []byte
	if repeat {
		for _, b := range s.unread {
			data = append(data, b.data...)
		}
	}
	for i := range records {
		m := encodeSyslog(s.host, &records[i])
		if s.raw != nil {
			data = append(fmt.Appendf(data, "%d ", len(m)), m...)
			continue
		}
		if len(m) > maxDatagram {
			m = bytes.ToValidUTF8(m[:maxDatagram], nil)
		}
		if _, err := conn.Write(m); err != nil {
			return err
		}
	}
	if s.raw == nil {
		return nil
	}
	if _, err := conn.Write(data); err != nil {
		return err
	}
	for {
		if left, err := s.unsent(); err != nil {
			return err
		} else if left == 0 {
			break
		}
		if !pause.For(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
	if repeat {
		s.unread, s.size = nil, 0
	}
	s.unread, s.size = append(s.unread, sentBatch{time.Now(), data}), s.size+len(data)
	for len(s.unread) > 1 && (s.size > unreadSize || time.Since(s.unread[0].at) > unreadTime) {
		s.size -= len(s.unread[0].data)
		s.unread = slices.Delete(s.unread, 0, 1)
	}
	return nil
}

// unsent returns the number of bytes that the other machine has not acknowledged, or an error if the other end has closed the
// connection. It does not read from the connection, because unread bytes may belong to TLS.
func (s *syslogSink) unsent() (left int, err error) {
	failed := s.raw.Control(func(fd uintptr) {
		list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if _, _ = unix.Poll(list, 0); list[0].Revents != 0 { // Poll can only fail because of a signal
			err = io.ErrUnexpectedEOF // return an error instead of a number: after a reset, the number of unsent bytes never falls to 0
			return
		}
		left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	})
	return left, cmp.Or(failed, err)
}

func (s *syslogSink) connect(ctx context.Context) error {
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
		s.conn = secure
		return withCertificateHint(secure.HandshakeContext(ctx))
	}
	return nil
}

// Close implements Sink.
func (s *syslogSink) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn, s.raw = nil, nil
	return err
}
