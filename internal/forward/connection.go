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

	"github.com/samber/lo"
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
func (s *syslogSink) Send(ctx context.Context, records []Record) (err error) {
	if s.raw != nil && s.waitUntilAcknowledged(ctx) != nil {
		_ = s.Close()
	}
	defer func() {
		if err != nil {
			_ = s.Close()
		}
	}()
	kept, batch := s.unread, sentBatch{at: time.Now()}
	if s.conn == nil {
		if err := s.connect(ctx); err != nil {
			return err
		}
		for _, b := range s.unread {
			batch.data = append(batch.data, b.data...)
		}
		kept = nil
	}
	conn := s.conn
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	for i := range records {
		m := encodeSyslog(s.host, &records[i])
		if s.raw != nil {
			batch.data = append(fmt.Appendf(batch.data, "%d ", len(m)), m...)
		} else if _, err := conn.Write(bytes.ToValidUTF8(m[:min(len(m), maxDatagram)], nil)); err != nil {
			return err
		}
	}
	if s.raw == nil {
		return nil
	}
	if _, err = conn.Write(batch.data); err == nil {
		err = s.waitUntilAcknowledged(ctx)
	}
	if err != nil {
		return err
	}
	s.unread = append(kept, batch)
	size := func(b sentBatch) int { return len(b.data) }
	for len(s.unread) > 1 && (lo.SumBy(s.unread, size) > unreadSize || time.Since(s.unread[0].at) > unreadTime) {
		s.unread = slices.Delete(s.unread, 0, 1)
	}
	return nil
}

// waitUntilAcknowledged waits until the other machine has acknowledged all bytes, because syslog has no answers. It returns an
// error if the other end has closed the connection. It does not read from the connection, because unread bytes may belong to TLS.
func (s *syslogSink) waitUntilAcknowledged(ctx context.Context) (err error) {
	for {
		left := 0
		failed := s.raw.Control(func(fd uintptr) {
			list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			if _, _ = unix.Poll(list, 0); list[0].Revents != 0 { // Poll can only fail because of a signal
				err = io.ErrUnexpectedEOF // after a reset, the number of unacknowledged bytes never falls to 0
				return
			}
			left, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
		})
		if err = cmp.Or(failed, err); err != nil || left == 0 {
			return err
		}
		if !pause.For(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (s *syslogSink) connect(ctx context.Context) (err error) {
	var dialer net.Dialer
	s.conn, err = dialer.DialContext(ctx, s.network, s.address)
	if err != nil && s.network == "unixgram" {
		s.conn, err = dialer.DialContext(ctx, "unix", s.address)
	}
	if err != nil {
		return err
	}
	if n := s.conn.LocalAddr().Network(); n == "tcp" || n == "unix" {
		sc, _ := s.conn.(syscall.Conn)
		s.raw, err = sc.SyscallConn()
	}
	if err == nil && s.secure != nil {
		secure := tls.Client(s.conn, s.secure)
		s.conn, err = secure, withCertificateHint(secure.HandshakeContext(ctx))
	}
	return err
}

// Close implements Sink.
func (s *syslogSink) Close() (err error) {
	if s.conn != nil {
		err = s.conn.Close()
	}
	s.conn, s.raw = nil, nil
	return err
}
