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
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// NewSink makes a sink of where records are to go: otlp+http://HOST:4318, loki+https://HOST, syslog+udp://HOST:514 (tcp, tls),
// syslog+unix:///dev/log, file:///PATH. Where the way is encrypted, ?ca=FILE names the authority to trust in the place of the system's, and
// ?name=NAME who the receiver's certificate has to be for, in the place of HOST. authorization is the header of HTTP requests, "" for none.
func NewSink(to, authorization string) (Sink, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("cannot send to it: %w", err)
	}
	kind, way, _ := strings.Cut(u.Scheme, "+")
	host := hostname()
	secure, err := secured(u, way)
	if err != nil {
		return nil, fmt.Errorf("cannot send to %s: %w", u.Redacted(), err)
	}
	post := func(path string, encode func(string, []Record) any, check func([]byte) error) (Sink, error) {
		if u.Host == "" || way != "http" && way != "https" {
			return nil, fmt.Errorf("cannot send to %s: expected %s+http://HOST:PORT", u.Redacted(), kind)
		}
		target := *u
		if target.Scheme = way; strings.Trim(target.Path, "/") == "" {
			target.Path = path
		}
		client := http.Client{}
		if secure != nil {
			client.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
		}
		return &poster{url: target.String(), authorization: authorization, host: host, client: client, encode: encode, check: check}, nil
	}
	switch kind {
	case "otlp":
		return post("/v1/logs", otlp, otlpAnswer)
	case "loki":
		return post("/loki/api/v1/push", loki, nil)
	case "syslog":
		switch {
		case way == "unix" && u.Path != "":
			return &syslog{network: "unixgram", address: u.Path, host: host}, nil
		case (way == "udp" || way == "tcp" || way == "tls") && u.Port() != "":
			return &syslog{network: strings.Replace(way, "tls", "tcp", 1), address: u.Host, host: host, secure: secure}, nil
		}
		return nil, fmt.Errorf("cannot send to %s: expected syslog+udp://HOST:PORT (or tcp, tls), or syslog+unix:///dev/log", u.Redacted())
	case "file":
		if u.Path == "" || way != "" {
			return nil, fmt.Errorf("cannot send to %s: expected file:///PATH", u.Redacted())
		}
		return &lines{path: u.Path, most: 100 << 20, keep: 5}, nil
	}
	return nil, fmt.Errorf("cannot send to %q: it begins with none of otlp+, loki+, syslog+ and file://", u.Redacted())
}

// secured is how the receiver's certificate is checked, nil where nothing is encrypted. It takes its settings out of the URL.
func secured(u *url.URL, way string) (*tls.Config, error) {
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
	if err != nil {
		return nil, err
	}
	if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("there is no certificate in %q", ca)
	}
	return c, nil
}

// explained says what to do about a certificate that is not believed.
func explained(err error) error {
	if bad := (*tls.CertificateVerificationError)(nil); errors.As(err, &bad) {
		return fmt.Errorf("the receiver's certificate is not to be believed: %w; name its authority with ?ca=FILE, or what it is for with ?name=NAME", bad.Err)
	}
	return err
}

// lines is a file of JSON, an object a line, with a limit: beyond it the file becomes PATH.1, and the oldest goes.
type lines struct {
	path string
	most int64
	keep int
	file *os.File
	size int64
}

// Send implements Sink. What a fault has left of a line ends before the next one.
func (l *lines) Send(_ context.Context, records []Record) error {
	if l.file == nil {
		f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return err
		}
		l.file, l.size = f, info.Size()
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, l.size-1); l.size > 0 && err == nil && last[0] != '\n' {
			if _, err := f.WriteString("\n"); err != nil {
				return errors.Join(err, l.Close())
			}
		}
	}
	var b bytes.Buffer
	for _, r := range records {
		text, err := json.Marshal(r)
		if err != nil {
			return &RefusedError{err.Error()}
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	_, err := l.file.Write(b.Bytes())
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	if l.size += int64(b.Len()); l.size > l.most {
		if err := l.Close(); err != nil {
			return nil //nolint:nilerr // what was sent is on the disk
		}
		for i := l.keep - 1; i > 0; i-- {
			_ = os.Rename(fmt.Sprintf("%s.%d", l.path, i), fmt.Sprintf("%s.%d", l.path, i+1)) // most are not there
		}
		_ = os.Rename(l.path, l.path+".1") // a file that stays grows on
	}
	return nil
}

// Close implements Sink.
func (l *lines) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
