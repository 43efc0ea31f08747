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
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/samber/lo"
	"golang.org/x/sys/unix"

	"hinit/internal/fsutil"
	"hinit/internal/pause"
)

// Sink sends records to a receiver. After a [RefusedError], the caller must not send the refused records again. After any other
// error, the caller sends the same records again.
type Sink func(ctx context.Context, records []Record) error

// RefusedError means that the receiver does not accept some of the records, and never will.
type RefusedError struct {
	error
	Records int // number of refused records if the receiver has accepted the rest; 0 if it has refused all records, perhaps because of a single one
}

// NewSink returns the sink for an address: otlp+http://HOST:4318, loki+https://HOST, syslog+udp://HOST:514 (tcp, tls),
// syslog+unix:///dev/log, file:///PATH. For an encrypted connection, ?ca=FILE has the authorities to trust instead of the
// system's authorities. ?name=NAME is the name in the receiver's certificate if it isn't HOST. authorization is the value of the
// Authorization header of HTTP requests, or "".
func NewSink(to, authorization string) (Sink, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("cannot send to it: %w", err)
	}
	kind, way, _ := strings.Cut(u.Scheme, "+")
	host, _ := os.Hostname()
	secure, err := tlsConfig(u, way)
	syslog := &syslogSink{network: strings.Replace(way, "tls", "tcp", 1), address: u.Host, host: host, secure: secure}
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot send to %s: %w", u.Redacted(), err)
	case kind == "otlp" && (way == "http" || way == "https") && u.Host != "":
		return httpSink(u, "/v1/logs", secure, authorization, func(records []Record) []byte { return encodeOTLP(host, records) }), nil
	case kind == "loki" && (way == "http" || way == "https") && u.Host != "":
		return httpSink(u, "/loki/api/v1/push", secure, authorization, func(records []Record) []byte { return encodeLoki(host, records) }), nil
	case kind == "syslog" && way == "unix" && u.Path != "":
		syslog.network, syslog.address = "unixgram", u.Path
		return syslog.send, nil
	case kind == "syslog" && (way == "tcp" || way == "tls" || way == "udp") && u.Port() != "":
		return syslog.send, nil
	case kind == "file" && way == "" && u.Path != "":
		return func(_ context.Context, records []Record) error { return appendToFile(u.Path, 100<<20, records) }, nil
	}
	const forms = "otlp+http://HOST:PORT, loki+http://HOST:PORT (or https), syslog+udp://HOST:PORT (or tcp, tls), syslog+unix:///dev/log or file:///PATH"
	return nil, fmt.Errorf("cannot send to %q: expected %s", u.Redacted(), forms)
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

// withCertificateHint appends advice to an error about an invalid certificate.
func withCertificateHint(err error) error {
	if bad := (*tls.CertificateVerificationError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("the receiver's certificate is not valid: %w; name its authority with ?ca=FILE, or the name in it with ?name=NAME", bad.Err)
	}
	return err
}

// httpSink returns a sink that sends each batch in a request to u. If u has no path, it uses defaultPath.
func httpSink(u *url.URL, defaultPath string, secure *tls.Config, authorization string, encode func(records []Record) []byte) Sink {
	to := *u
	_, to.Scheme, _ = strings.Cut(u.Scheme, "+")
	if strings.Trim(u.Path, "/") == "" {
		to.Path = defaultPath
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
	c := &http.Client{Transport: transport, CheckRedirect: checkRedirect}
	header := http.Header{"Content-Type": {"application/json"}}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	return func(ctx context.Context, records []Record) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(encode(records)))
		if err != nil {
			return err
		}
		r.Header = header.Clone()
		response, err := c.Do(r)
		if err != nil {
			return withCertificateHint(err)
		}
		return checkAnswer(response)
	}
}

// checkRedirect allows a redirect only if the next request also contains the records. After the codes 301, 302 and 303, a client
// may omit the body (RFC 9110, section 15.4). The answer 200 of a login page would then look as if records were accepted.
func checkRedirect(next *http.Request, before []*http.Request) error {
	if next.Method != http.MethodPost || len(before) > 5 {
		return http.ErrUseLastResponse
	}
	return nil
}

// checkAnswer reads the receiver's answer. It returns an error unless the receiver has accepted the records.
func checkAnswer(response *http.Response) error {
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	failed := fmt.Errorf("the receiver answers %s: %s", response.Status, strings.TrimSpace(string(text)))
	switch code := response.StatusCode; {
	case code >= 200 && code < 300:
		return cmp.Or(err, checkOTLP(text))
	case code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge, code == http.StatusUnprocessableEntity:
		return RefusedError{error: failed}
	}
	return failed
}

// checkOTLP reads the receiver's answer (ExportLogsServiceResponse). If the receiver has refused some records, it returns a
// [RefusedError]. An answer of any other form means that all records were accepted.
func checkOTLP(text []byte) error {
	var answer struct {
		PartialSuccess struct {
			RejectedLogRecords json.Number // JSON may contain a 64-bit number as a number or as a text
			ErrorMessage       string
		}
	}
	_ = json.Unmarshal(text, &answer)
	n, _ := answer.PartialSuccess.RejectedLogRecords.Int64()
	if n <= 0 {
		return nil
	}
	return RefusedError{errors.New(answer.PartialSuccess.ErrorMessage), int(n)}
}

// appendToFile appends records to the file at path, one JSON object a line. If the file then exceeds maxSize bytes, it is
// renamed to PATH.1, and the next call begins a new file. appendToFile first ends an incomplete last line.
func appendToFile(path string, maxSize int64, records []Record) error {
	_, err := fsutil.WithParentDir(path, nil, func(d *fsutil.Dir, name string) (any, error) {
		f, err := d.OpenUpdate(name, 0o600)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		size, err := f.Seek(0, io.SeekEnd)
		last := []byte{'\n'}
		if err == nil && size > 0 {
			_, err = f.ReadAt(last, size-1)
		}
		var data bytes.Buffer
		if last[0] != '\n' {
			data.WriteByte('\n')
		}
		lines := json.NewEncoder(&data)
		for i := range records {
			err = errors.Join(err, lines.Encode(&records[i]))
		}
		if err != nil {
			return nil, err
		}
		_, err = f.Write(data.Bytes())
		if err = errors.Join(err, f.Sync()); err != nil {
			return nil, errors.Join(err, f.Truncate(size)) // otherwise each attempt on a full disk would leave a part of the batch
		}
		if size+int64(data.Len()) <= maxSize {
			return nil, nil
		}
		for i := maxFullFiles - 1; i > 0; i-- {
			_ = d.Rename(fmt.Sprintf("%s.%d", name, i), fmt.Sprintf("%s.%d", name, i+1)) // most of these files do not exist
		}
		_ = d.Rename(name, name+".1") // without the rename, the file grows beyond its limit
		return nil, nil
	})
	return err
}

// maxFullFiles is the number of full files to keep.
const maxFullFiles = 5

// syslogSink sends syslog messages. Each message is a datagram, or over a stream follows its length (RFC 6587).
type syslogSink struct {
	network, address, host string
	secure                 *tls.Config // TLS settings; nil: no encryption
	conn                   net.Conn
	raw                    syscall.RawConn
	unreadBatches          []sentBatch // sent batches that the receiver may not have read, oldest first
}

// sentBatch is the data of a single call of send.
type sentBatch struct {
	at   time.Time
	data []byte
}

const (
	maxDatagram = 8 << 10 // maximum size of a datagram in bytes; RFC 5424 requires only 480, but most receivers accept 8 KiB

	// unreadTimeout is how long a working receiver may take to read data that its kernel has already acknowledged. Each batch
	// stays in unread for this time, at most maxUnreadBytes bytes in total.
	unreadTimeout  = time.Minute
	maxUnreadBytes = 8 << 20
)

// send is a [Sink]. After an error it closes the connection. After a lost connection, the receiver may not have read the last
// messages, so send repeats them on the next connection.
func (s *syslogSink) send(ctx context.Context, records []Record) (err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	kept, batch := s.unreadBatches, sentBatch{at: time.Now()}
	if s.conn == nil || s.raw != nil && s.waitUntilAcknowledged(ctx) != nil {
		s.close()
		if err := s.connect(ctx); err != nil {
			return err
		}
		for _, b := range s.unreadBatches {
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
	s.unreadBatches = append(kept, batch)
	size := func(b sentBatch) int { return len(b.data) }
	for len(s.unreadBatches) > 1 && (lo.SumBy(s.unreadBatches, size) > maxUnreadBytes || time.Since(s.unreadBatches[0].at) > unreadTimeout) {
		s.unreadBatches = slices.Delete(s.unreadBatches, 0, 1)
	}
	return nil
}

// waitUntilAcknowledged waits until the other machine has acknowledged all bytes. Syslog has no answers, so this is the best
// available proof of arrival. If the other end has closed the connection, it returns an error. It does not read from the
// connection, because unread bytes may belong to TLS.
func (s *syslogSink) waitUntilAcknowledged(ctx context.Context) (err error) {
	for {
		left := 0
		failed := s.raw.Control(func(fd uintptr) {
			list := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			if _, _ = unix.Poll(list, 0); list[0].Revents != 0 { // only a signal can make Poll fail
				err = io.ErrUnexpectedEOF // after a reset, the number of unacknowledged bytes would never fall to 0
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

func (s *syslogSink) close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	s.conn, s.raw = nil, nil
}
