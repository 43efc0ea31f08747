package forward

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
)

// Sink sends records to a receiver. An [AnswerError] says what the receiver has done with them. After any other error, the caller
// sends the same records again.
type Sink interface {
	Send(ctx context.Context, records []Record) error
	Close() error
}

// AnswerError is the answer of a receiver that has not simply accepted the records.
type AnswerError struct {
	error
	Accepted bool          // don't send any of the records again; without LeftOut, the error is only a warning
	LeftOut  int           // how many of the accepted records the receiver has left out
	Refused  bool          // the receiver will never accept these records together
	After    time.Duration // how long to wait before the records are sent again
}

// receivers has for each scheme the form of the URL for error messages and, for HTTP, the default path and the encoding.
var receivers = map[string]struct {
	form, path string
	encode     func(host string, records []Record) []byte
}{
	"otlp":   {"otlp+http://HOST:PORT", "/v1/logs", encodeOTLP},
	"loki":   {"loki+http://HOST:PORT", "/loki/api/v1/push", encodeLoki},
	"syslog": {form: "syslog+udp://HOST:PORT (or tcp, tls), or syslog+unix:///dev/log"},
	"file":   {form: "file:///PATH"},
}

// NewSink returns the sink for an address: otlp+http://HOST:4318, loki+https://HOST, syslog+udp://HOST:514 (tcp, tls),
// syslog+unix:///dev/log, file:///PATH. With encryption, ?ca=FILE has the certificates of the authorities to trust in place of
// the system's. ?name=NAME is the name in the receiver's certificate if that isn't HOST. authorization is the value of the
// Authorization header of HTTP requests, or "".
func NewSink(to, authorization string) (Sink, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("cannot send to it: %w", err)
	}
	kind, way, _ := strings.Cut(u.Scheme, "+")
	host, _ := os.Hostname() // "" if it is unknown
	secure, err := tlsConfig(u, way)
	if err != nil {
		return nil, fmt.Errorf("cannot send to %s: %w", u.Redacted(), err)
	}
	receiver, known := receivers[kind]
	switch {
	case !known:
		return nil, fmt.Errorf("cannot send to %q: it begins with none of otlp+, loki+, syslog+ and file://", u.Redacted())
	case receiver.encode != nil && (way == "http" || way == "https") && u.Host != "":
		u.Scheme = way
		if strings.Trim(u.Path, "/") == "" {
			u.Path = receiver.path
		}
		transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
		return &httpSink{u.String(), authorization, host, http.Client{Transport: transport, CheckRedirect: keepsRecords}, receiver.encode}, nil
	case kind == "syslog" && way == "unix" && u.Path != "":
		return &syslogSink{network: "unixgram", address: u.Path, host: host}, nil
	case kind == "syslog" && (way == "tcp" || way == "tls" || way == "udp") && u.Port() != "":
		return &syslogSink{network: strings.Replace(way, "tls", "tcp", 1), address: u.Host, host: host, secure: secure}, nil
	case kind == "file" && way == "" && u.Path != "":
		return &fileSink{path: u.Path, maxSize: 100 << 20, keptFiles: 5}, nil
	}
	return nil, fmt.Errorf("cannot send to %s: expected %s", u.Redacted(), receiver.form)
}

// tlsConfig returns the TLS settings for checking the receiver's certificate, or nil without encryption. It removes the
// parameters ca and name from the URL.
func tlsConfig(u *url.URL, way string) (*tls.Config, error) {
	query := u.Query()
	ca, name := query.Get("ca"), query.Get("name")
	if way != "tls" && way != "https" {
		if ca != "" || name != "" {
			return nil, errors.New("?ca= and ?name= are for tls and https")
		}
		return nil, nil
	}
	query.Del("ca")
	query.Del("name")
	u.RawQuery = query.Encode()
	c := &tls.Config{ServerName: cmp.Or(name, u.Hostname()), MinVersion: tls.VersionTLS12}
	if ca == "" {
		return c, nil
	}
	text, err := os.ReadFile(ca)
	c.RootCAs = x509.NewCertPool()
	if err == nil && !c.RootCAs.AppendCertsFromPEM(text) {
		err = fmt.Errorf("there is no certificate in %q", ca)
	}
	return c, err
}

// withCertificateHint adds to an error about an invalid certificate what the user can do.
func withCertificateHint(err error) error {
	if bad := (*tls.CertificateVerificationError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("the receiver's certificate is not valid: %w; name its authority with ?ca=FILE, or the name in it with ?name=NAME", bad.Err)
	}
	return err
}

// httpSink is a Sink that sends a batch as the body of an HTTP request.
type httpSink struct {
	url, authorization, host string
	client                   http.Client
	encode                   func(host string, records []Record) []byte
}

// keepsRecords follows a redirect only if the next request has the records too. A client may follow the codes 301, 302 and 303
// without the body (RFC 9110, section 15.4). So the answer 200 of a login page would mean that records were accepted.
func keepsRecords(next *http.Request, before []*http.Request) error {
	if next.Method != http.MethodPost || len(before) > maxRedirects {
		return http.ErrUseLastResponse
	}
	return nil
}

const maxRedirects = 5

// Send implements [Sink].
func (p *httpSink) Send(ctx context.Context, records []Record) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(p.encode(p.host, records)))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if p.authorization != "" {
		r.Header.Set("Authorization", p.authorization)
	}
	response, err := p.client.Do(r)
	if err != nil {
		return withCertificateHint(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	failed := fmt.Errorf("the receiver answers %s: %s", response.Status, strings.TrimSpace(string(text)))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300 && err != nil:
		return err // the answer is incomplete, so the records may not have been accepted
	case code >= 200 && code < 300:
		return checkOTLP(text) // the answer of Loki is empty
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return AnswerError{error: failed, Refused: true}
	}
	return AnswerError{error: failed, After: retryAfter(response.Header.Get("Retry-After"), time.Now())}
}

// Close implements [Sink].
func (p *httpSink) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// retryAfter returns how long the header Retry-After asks to wait. Its value is a number of seconds or a date (RFC 9110, 10.2.3).
// For any other text the result is 0.
func retryAfter(text string, now time.Time) time.Duration {
	wait, err := time.ParseDuration(text + "s")
	if at, failed := http.ParseTime(text); err != nil && failed == nil {
		wait = at.Sub(now)
	}
	return max(wait, 0)
}

// checkOTLP reads the receiver's answer (ExportLogsServiceResponse), and returns an [AnswerError] if the receiver has refused
// some records. An answer of another form means that it has accepted all.
func checkOTLP(text []byte) error {
	var answer struct {
		PartialSuccess struct {
			RejectedLogRecords json.Number // the JSON mapping of 64-bit numbers has a number or a text
			ErrorMessage       string
		}
	}
	_ = json.Unmarshal(text, &answer)
	partial := answer.PartialSuccess
	n, _ := partial.RejectedLogRecords.Int64() // 0 if it is no number
	if n <= 0 && partial.ErrorMessage == "" {
		return nil
	}
	return AnswerError{error: errors.New(partial.ErrorMessage), Accepted: true, LeftOut: int(max(n, 0))}
}

// fileSink is a Sink that writes records to a file, one JSON object a line. A full file is renamed to PATH.1, and a new one
// begins. If there are too many full files, the oldest one is removed.
type fileSink struct {
	path      string
	maxSize   int64 // in bytes
	keptFiles int   // number of full files to keep
}

// Send implements [Sink]. If the last line of the file is incomplete, because an earlier write was cut off, Send first ends that
// line.
func (l *fileSink) Send(_ context.Context, records []Record) error {
	return inDir(l.path, nil, func(d *fsutil.Dir, name string) error {
		f, err := d.OpenUpdate(name, 0o600)
		if err != nil {
			return err
		}
		defer f.Close() // an error does no harm, because the data is synced
		size, err := f.Seek(0, io.SeekEnd)
		last := []byte{'\n'}
		if err == nil && size > 0 {
			_, err = f.ReadAt(last, size-1)
		}
		var data bytes.Buffer
		if last[0] != '\n' {
			data.WriteByte('\n')
		}
		for lines, i := json.NewEncoder(&data), 0; i < len(records) && err == nil; i++ {
			err = lines.Encode(&records[i])
		}
		size += int64(data.Len())
		if err == nil {
			_, err = f.Write(data.Bytes())
		}
		if err = errors.Join(err, f.Sync()); err != nil || size <= l.maxSize {
			return err
		}
		for i := l.keptFiles - 1; i > 0; i-- {
			_ = d.Rename(fmt.Sprintf("%s.%d", name, i), fmt.Sprintf("%s.%d", name, i+1)) // most of these files do not exist
		}
		_ = d.Rename(name, name+".1") // if this fails, the file grows beyond its limit
		return nil
	})
}

// Close implements [Sink].
func (*fileSink) Close() error { return nil }

// inDir opens the directory of the file at path, and calls fn with the directory and the file's name. A nil actor means this
// process. The agent may own directories on the path, so a process of root follows no links there.
func inDir(path string, as *fsutil.Actor, fn func(d *fsutil.Dir, name string) error) error {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	open := fsutil.OpenDir
	if as == nil && os.Geteuid() == 0 {
		open = fsutil.OpenNoLink
	}
	d, err := open(dir, as)
	if err != nil {
		return err
	}
	defer d.Close()
	return fn(d, filepath.Base(path))
}

// syslogSink is a Sink that sends syslog messages: each in a datagram or, over a stream, preceded by its length (RFC 6587).
type syslogSink struct {
	network, address, host string
	secure                 *tls.Config // nil: no encryption
	conn                   net.Conn
	raw                    syscall.RawConn // of a stream; nil for datagrams
	unread                 []sentBatch     // sent batches that the receiver may not have read yet, oldest first
}

// sentBatch is what one call of Send has sent.
type sentBatch struct {
	at   time.Time
	data []byte
}

const (
	maxDatagram = 8 << 10 // in bytes; RFC 5424 only requires 480, but most receivers accept 8 KiB

	// unreadTime is how long a working receiver may take to read data that its kernel has acknowledged. Each batch stays in unread
	// for that time, within a total of unreadSize bytes.
	unreadTime = time.Minute
	unreadSize = 8 << 20
)

// Send implements [Sink]. After an error it closes the connection. If a connection was lost, the receiver may not have read the
// last messages, so Send repeats them over the next one.
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

// waitUntilAcknowledged waits until the other machine has acknowledged all bytes. Syslog has no answers, so this is the best
// proof of arrival. It returns an error if the other end has closed the connection. It does not read from the connection, because
// unread bytes may belong to TLS.
func (s *syslogSink) waitUntilAcknowledged(ctx context.Context) (err error) {
	for {
		left := 0
		failed := s.raw.Control(func(fd uintptr) {
			list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			if _, _ = unix.Poll(list, 0); list[0].Revents != 0 { // can only fail because of a signal
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

// Close implements [Sink].
func (s *syslogSink) Close() (err error) {
	if s.conn != nil {
		err = s.conn.Close()
	}
	s.conn, s.raw = nil, nil
	return err
}
