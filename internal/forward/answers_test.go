package forward

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hinit/internal/testkit"
)

func TestWhatAReceiverLeavesOutIsCountedAndDoesNotComeAgain(t *testing.T) {
	for answer, want := range map[string]RefusedError{
		`{}`: {}, `{"partialSuccess":{}}`: {}, `{"partialSuccess":{"rejectedLogRecords":"0"}}`: {}, `not JSON`: {}, ``: {},
		// OTLP in JSON writes 64-bit numbers as strings
		`{"partialSuccess":{"rejectedLogRecords":"3","errorMessage":"too old"}}`: {errors.New("too old"), 3},
		`{"partialSuccess":{"rejectedLogRecords":3}}`:                            {errors.New(""), 3},
		`{"partialSuccess":{"errorMessage":"slow down"}}`:                        {},
	} {
		err := checkOTLP([]byte(answer))
		got, partial := errors.AsType[RefusedError](err)
		if partial != (err != nil) || partial != (want.error != nil) || partial && (got.Records != want.Records || got.Error() != want.Error()) {
			t.Errorf("%s: got %v, want %v", answer, err, want)
		}
	}
	l, f := newLog(t)
	l.writeLines(5)
	first := 0
	s := &fakeSink{fail: func(n int, records []Record) error {
		if n == 1 {
			first = len(records)
			return RefusedError{errors.New("too old"), 1}
		}
		return nil
	}}
	stop := startForwarder(t, f, s.send, nil)
	testkit.Until(t, "the lines are sent", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.calls > 0 })
	l.writeLines(5)
	testkit.Until(t, "the next ones", func() bool { return slices.Contains(s.texts(KindLog), "line 10") })
	if c := stop().Counts(); c.Sent != 9 || c.RefusedRecords != 1 || c.Failures != 0 || len(s.texts(KindLog)) != 10-first {
		t.Errorf("counts %+v, %d lines after the ones that were left out", c, len(s.texts(KindLog)))
	}
}

// makeCertificate returns a certificate for a name with its key, and the file that makes a client trust it.
func makeCertificate(t *testing.T, name string) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

// A certificate of an unknown authority must be refused. The end of a connection must be noticed even over TLS 1.3, where the
// receiver sends data without a request.
func TestACertificateIsChecked(t *testing.T) {
	certificate, ca := makeCertificate(t, "logs.example.org")
	_, other := makeCertificate(t, "logs.example.org")
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}})
	if err != nil {
		t.Fatal(err)
	}
	got, shut, ended := make(chan string, 10), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			buffer := make([]byte, 4096)
			n, _ := c.Read(buffer)
			got <- string(buffer[:n])
			if n > 0 {
				<-shut
			}
			_ = c.Close()
		}
	}()
	defer func() { _ = l.Close(); <-ended }()
	to := "syslog+tls://" + l.Addr().String()
	for query, wrong := range map[string]string{
		"": "?ca=FILE",
		"?ca=" + other + "&name=logs.example.org": "?ca=FILE",
		"?ca=" + ca:                             "127.0.0.1",
		"?ca=" + ca + "&name=other.example.org": "other.example.org",
	} {
		s, err := NewSink(to+query, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := s(t.Context(), []Record{{Text: "secret"}}); err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", query, err)
		}
		if text := <-got; text != "" {
			t.Errorf("%s: it was told %q", query, text)
		}
	}
	u, err := url.Parse(to + "?ca=" + ca + "&name=logs.example.org")
	if err != nil {
		t.Fatal(err)
	}
	secure, err := tlsConfig(u, "tls")
	if err != nil {
		t.Fatal(err)
	}
	s := &syslogSink{network: "tcp", address: u.Host, secure: secure}
	defer s.close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := s.send(ctx, []Record{{Text: "one"}}); err != nil {
		t.Fatal(err)
	}
	if text := <-got; !strings.HasSuffix(text, " one") {
		t.Errorf("got %q", text)
	}
	shut <- struct{}{}
	testkit.Until(t, "the end is seen", func() bool { return s.waitUntilAcknowledged(ctx) != nil })
	if err := s.send(ctx, []Record{{Text: "two"}}); err != nil {
		t.Fatal(err)
	}
	if text := <-got; !strings.Contains(text, " one") || !strings.HasSuffix(text, " two") {
		t.Errorf("got %q: what may not have been read goes again", text)
	}
	close(shut)
	for _, bad := range []string{"syslog+tcp://a:1?ca=" + ca, "syslog+tls://a:1?ca=/none", "otlp+https://a?ca=/dev/null"} {
		if _, err := NewSink(bad, ""); err == nil || !strings.HasPrefix(err.Error(), "cannot send to ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
