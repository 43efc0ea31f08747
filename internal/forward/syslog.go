package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// syslog sends messages of RFC 5424: a datagram each, or over a stream with their length before them (RFC 6587).
type syslog struct {
	network, address, host string
	secure                 *tls.Config // nil: nothing is encrypted
	conn                   net.Conn
	raw                    syscall.RawConn // nil for datagrams
	last                   []sentBatch     // that the receiver may not have read yet
	again                  bool            // they may be lost
}

// sentBatch is what was sent at once.
type sentBatch struct {
	at      time.Time
	size    int
	records []Record
}

const (
	mostDatagram = 8 << 10 // what every receiver has to take at least is 480 bytes, and takes most often

	// A receiver that lives reads within unreadTime what its machine has acknowledged, of which there is at most unreadSize.
	unreadTime = time.Minute
	unreadSize = 8 << 20
)

// Send implements Sink. A stream is taken when the other machine has acknowledged all of it: syslog itself answers nothing. When the
// connection turns out to be lost later, what was sent at its end goes again, for nobody knows whether it was read.
func (s *syslog) Send(ctx context.Context, records []Record) error {
	if s.raw != nil && s.gone() != nil {
		s.again = true
		_ = s.Close()
	}
	all := records
	if s.again {
		all = nil
		for _, b := range s.last {
			all = append(all, b.records...)
		}
		all = append(all, records...)
	}
	size, err := s.send(ctx, all)
	if err != nil {
		s.again = true
		_ = s.Close()
		return err
	}
	if s.raw == nil {
		return nil
	}
	if s.again {
		s.last = nil
	}
	s.again, s.last = false, append(s.last, sentBatch{time.Now(), size, all})
	total := 0
	for i, b := range slices.Backward(s.last) {
		if total += b.size; i < len(s.last)-1 && (total > unreadSize || time.Since(b.at) > unreadTime) {
			s.last = slices.Clone(s.last[i+1:])
			break
		}
	}
	return nil
}

// send sends records and returns how many bytes a stream of them has.
func (s *syslog) send(ctx context.Context, records []Record) (size int, err error) {
	if err := s.connect(ctx); err != nil {
		return 0, err
	}
	if end, has := ctx.Deadline(); has {
		_ = s.conn.SetDeadline(end)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if s.raw == nil {
		for _, r := range records {
			m := s.message(r)
			if len(m) > mostDatagram {
				m = bytes.ToValidUTF8(m[:mostDatagram], nil)
			}
			if _, err := s.conn.Write(m); err != nil {
				return 0, err
			}
		}
		return 0, nil
	}
	if err := s.gone(); err != nil {
		return 0, err
	}
	var b bytes.Buffer
	for _, r := range records {
		m := s.message(r)
		b.WriteString(strconv.Itoa(len(m)))
		b.WriteByte(' ')
		b.Write(m)
	}
	if _, err := s.conn.Write(b.Bytes()); err != nil {
		return 0, err
	}
	for { // until the other end has it
		left := 0
		var failed error
		if err := s.raw.Control(func(fd uintptr) { left, failed = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }); err != nil {
			return 0, err
		}
		if err := errors.Join(failed, s.gone()); err != nil { // of a connection that was reset the rest stays for ever
			return 0, err
		}
		if left == 0 {
			return b.Len(), nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// gone says whether the other end has closed the connection. It reads nothing: over TLS there may be bytes that nobody has asked for.
func (s *syslog) gone() error {
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

func (s *syslog) connect(ctx context.Context) error {
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
func (s *syslog) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn, s.raw = nil, nil
	return err
}

// message is a record as RFC 5424 has it: facility daemon, severity informational, notice or warning.
func (s *syslog) message(r Record) []byte {
	severity := map[string]int{KindLog: 6, KindEvent: 5, KindGap: 4}[r.Kind]
	name := r.Service
	if name == "" {
		name = "hinit"
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "<%d>1 %s %s %s - %s [hinit@32473 profile=\"%s\"] ", 3*8+severity, r.Time.UTC().Format("2006-01-02T15:04:05.000000Z"),
		word(s.host, 255), word(name, 48), word(r.Kind, 32), value(r.Profile))
	b.WriteString(strings.NewReplacer("\n", " ", "\x00", " ").Replace(r.Text))
	return b.Bytes()
}

// word is a text as PRINTUSASCII without spaces.
func word(text string, most int) string {
	out := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, text)
	if out == "" {
		return "-"
	}
	return out[:min(len(out), most)]
}

// value is a text between the quotes of structured data.
func value(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, `]`, `\]`).Replace(text)
}

// hostname is how this machine is called.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "-"
	}
	return name
}
