package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"hinit/internal/testkit"
)

// rsyslog is Debian's rsyslog as a receiver. Each process writes its own file, because a kill may
// leave half a line.
type rsyslog struct {
	*webContainer
	program, driver string
	port            string
	starts          int
	cmd             *exec.Cmd
}

// start starts the next rsyslog process, on the same port.
func (r *rsyslog) start() {
	r.Helper()
	r.starts++
	port := r.port
	if port == "" {
		port = "0"
	}
	stream := ""
	if r.driver != "" {
		stream = fmt.Sprintf(`StreamDriver.Name=%q StreamDriver.Mode="1" StreamDriver.AuthMode="anon"`, r.driver)
	}
	conf := r.write(fmt.Sprintf("rsyslog-%d.conf", r.starts), fmt.Sprintf(`
global(workDirectory="$DIR" DefaultNetstreamDriverCAFile="$DIR/ca.pem" DefaultNetstreamDriverCertFile="$DIR/cert.pem" DefaultNetstreamDriverKeyFile="$DIR/key.pem")
main_queue(queue.type="Direct")
module(load="imtcp" %s)
template(name="whole" type="string" string="%%app-name%%|%%msgid%%|%%structured-data%%|%%timestamp:::date-rfc3339%%|%%msg%%\n")
input(type="imtcp" address="127.0.0.1" port=%q listenPortFileName="$DIR/port")
action(type="omfile" file="$DIR/received-%d" template="whole")
`, stream, port, r.starts))
	r.cmd, _ = r.webContainer.start(r.program, "-n", "-f", conf, "-i", fmt.Sprintf("%s/pid-%d", r.dir, r.starts))
	if r.starts > 1 {
		return // rsyslog writes no port file if the port is given.
	}
	testkit.Until(r.T, "rsyslog listens", func() bool {
		text, err := os.ReadFile(r.dir + "/port")
		r.port = strings.TrimSpace(string(text))
		return err == nil && r.port != ""
	})
}

// sockets returns how many sockets rsyslog has open.
func (r *rsyslog) sockets() (n int) {
	list, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
	for _, fd := range list {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// received returns all complete lines that all processes received.
func (r *rsyslog) received() (lines []string) {
	for life := range r.starts {
		text, _ := os.ReadFile(fmt.Sprintf("%s/received-%d", r.dir, life+1))
		for line := range strings.Lines(string(text)) {
			if whole, is := strings.CutSuffix(line, "\n"); is {
				lines = append(lines, whole)
			}
		}
	}
	return lines
}

func (b *webContainer) certificate(name string) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &key.PublicKey, key)
	if err != nil {
		b.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		b.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: der}, "cert.pem": {Type: "CERTIFICATE", Bytes: der}, "key.pem": {Type: "PRIVATE KEY", Bytes: private}} {
		b.write(file, string(pem.EncodeToMemory(block)))
	}
}

var fromCounter = regexp.MustCompile(`^counter\|log\|\[hinit@32473 profile=""\]\|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)\| ?line (\d+) \.{68}$`)

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestRsyslogGetsEveryLine checks that all lines arrive whole and in order over TCP and TLS, though the forwarder and rsyslog are
// killed with -9 meanwhile.
func TestRsyslogGetsEveryLine(t *testing.T) {
	program := requireProgram(t, "rsyslogd")
	for name, driver := range map[string]string{"tcp": "", "gnutls": "gtls", "openssl": "ossl"} {
		t.Run(name, func(t *testing.T) {
			b := newWebContainer(t, counter)
			b.certificate("logs.example.org")
			r := &rsyslog{webContainer: b, program: program, driver: driver}
			r.start()
			idle := r.sockets()
			to := "syslog+tcp://127.0.0.1:" + r.port
			if driver != "" {
				to = "syslog+tls://127.0.0.1:" + r.port
				wrong, out := b.start("hinit-web", "forward", "--to", to+"?ca="+b.dir+"/ca.pem", "--state", b.dir+"/wrong.json")
				testkit.Until(t, "the wrong name is told", func() bool {
					return strings.Contains(out.String(), "cannot validate certificate for 127.0.0.1") && strings.Contains(out.String(), "?name=NAME")
				})
				kill(t, wrong)
				to += "?name=logs.example.org&ca=" + b.dir + "/ca.pem"
			}
			forward := func() *exec.Cmd {
				cmd, _ := b.start("hinit-web", "forward", "--to", to, "--state", b.dir+"/state.json")
				return cmd
			}
			some := func(n int) {
				t.Helper()
				testkit.Until(t, fmt.Sprintf("%d lines", n), func() bool { return len(r.received()) >= n })
			}
			sender := forward()
			some(2000)
			kill(t, sender) // Lines of the killed sender come before lines of the next sender.
			testkit.Until(t, "the connection is over", func() bool { return r.sockets() <= idle })
			forward()
			some(8000)
			kill(t, r.cmd)
			testkit.Until(t, "its port is free", func() bool {
				c, err := net.Dial("tcp", "127.0.0.1:"+r.port)
				if err == nil {
					_ = c.Close()
				}
				return errors.Is(err, syscall.ECONNREFUSED)
			})
			r.start()
			some(15000)
			var first []string
			seen, events := make(map[string]bool), 0
			testkit.Until(t, "the last line", func() bool {
				all := r.received()
				return len(all) > 0 && strings.Contains(strings.Join(all[max(0, len(all)-200):], "\n"), "line 30000 ")
			})
			lines := r.received()
			for _, line := range lines {
				m := fromCounter.FindStringSubmatch(line)
				switch {
				case m == nil && strings.Contains(line, "|event|"):
					events++
				case m == nil:
					t.Fatalf("rsyslog has got %q", line)
				case !seen[m[1]]:
					seen[m[1]] = true
					first = append(first, m[1])
				}
			}
			for i, n := range first {
				if n != fmt.Sprint(i+1) {
					t.Fatalf("line %s comes as number %d", n, i+1)
				}
			}
			if len(first) != 30000 || events == 0 {
				t.Errorf("%d lines, %d events", len(first), events)
			}
			t.Logf("30000 lines came, %d of them again", len(lines)-events-30000)
		})
	}
}
