package probe

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/testkit"
)

func startServer(t *testing.T, network, address string, behave func(net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				behave(c)
			}()
		}
	}()
	return l
}

func serveText(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, text)
	}
}

func discardInput(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

// TestHTTPAnswers checks the result of an http check for good and faulty servers. Each check must end at its timeout and read
// little.
func TestHTTPAnswers(t *testing.T) {
	endless := strings.Repeat("x", 1<<16)
	flood := func(head string) func(net.Conn) {
		return func(c net.Conn) {
			serveText(head)(c)
			for sent := int64(0); sent < 10<<30; {
				n, err := io.WriteString(c, endless)
				if sent += int64(n); err != nil {
					return
				}
			}
		}
	}
	drip := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			for i := 0; ; i++ {
				if _, err := c.Write([]byte{text[i%len(text)]}); err != nil {
					return
				}
				<-time.After(10 * time.Millisecond)
			}
		}
	}
	body := func(c *config.Check) { c.HTTP.Contains = "all is well" }
	for name, tt := range map[string]struct {
		behave func(net.Conn)
		change func(*config.Check)
		good   bool
		want   string
	}{
		"ok":                {serveText("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), nil, true, "status 200"},
		"redirect":          {serveText("HTTP/1.1 302 Found\r\n\r\n"), nil, true, "status 302"},
		"bad status":        {serveText("HTTP/1.1 503 Service Unavailable\r\n\r\n"), nil, false, "status 503, expected 200-399"},
		"status of its own": {serveText("HTTP/1.1 404 Not Found\r\n\r\n"), func(c *config.Check) { c.HTTP.Status = "200,404" }, true, "status 404"},
		"continue":          {serveText("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"), nil, true, "status 204"},
		"body":              {serveText("HTTP/1.1 200 OK\r\n\r\nall is well"), body, true, "status 200"},
		"chunks":            {serveText("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nall \r\n7;x=y\r\nis well\r\n0\r\n\r\n"), body, true, "status 200"},
		"byte by byte": {func(c net.Conn) {
			serveText("HTTP/1.1 200 OK\r\n\r\n")(c)
			for _, b := range []byte(strings.Repeat(" ", 300) + "all is well") {
				_, _ = c.Write([]byte{b})
			}
		}, body, true, "status 200"},
		"a line of a stream that does not end": {func(c net.Conn) {
			serveText("HTTP/1.1 200 OK\r\n\r\nall ")(c)
			_, _ = c.Write([]byte("is well"))
			discardInput(c)
		}, body, true, "status 200"},
		"another body":            {serveText("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nno!"), body, false, `its body has no "all is well"`},
		"expression":              {serveText("HTTP/1.1 200 OK\r\n\r\nqueue: 17"), func(c *config.Check) { c.HTTP.Matches = `queue: \d+$` }, true, "status 200"},
		"a lie about its length":  {func(c net.Conn) { serveText("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nno!")(c); discardInput(c) }, body, false, "its answer is not complete: no answer within 400ms"},
		"ends early":              {serveText("HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nno!"), body, false, `its body has no "all is well"`},
		"hangs":                   {discardInput, nil, false, "no answer within 400ms"},
		"closes":                  {func(net.Conn) {}, nil, false, "it closed the connection"},
		"stalls in its status":    {func(c net.Conn) { serveText("HTTP/1.1 2")(c); discardInput(c) }, nil, false, "no answer within|not complete"},
		"slow loris":              {drip("H"), nil, false, "does not speak HTTP|no answer within|not complete"},
		"slow loris with headers": {drip("HTTP/1.1 200 OK\r\nA: b\r\n"), body, false, "does not speak HTTP|no answer within|not complete"},
		"10 GB":                   {flood("HTTP/1.1 200 OK\r\n\r\n"), body, false, `its body has no "all is well"`},
		"10 GB of status":         {flood("HTTP/1.1 200 "), nil, false, "its headers are longer than 64 KiB"},
		"10 GB of headers":        {flood("HTTP/1.1 200 OK\r\nA: "), body, false, "no answer within|not complete|its body has no|headers"},
		"ssh":                     {serveText("SSH-2.0-OpenSSH_9.6\r\n"), nil, false, `it does not speak HTTP: malformed HTTP response "SSH-2.0-OpenSSH_9.6"`},
		"a status of words":       {serveText("HTTP/1.1 abc\r\n\r\n"), nil, false, "it does not speak HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeout := time.Minute
			if strings.Contains(tt.want, "no answer within") {
				timeout = 400 * time.Millisecond
			}
			l := startServer(t, "tcp", "127.0.0.1:0", tt.behave)
			c := config.Check{Type: config.CheckHTTP, Timeout: timeout, HTTP: config.HTTPCheck{URL: "http://" + l.Addr().String() + "/health?x=1", Status: "200-399"}}
			if tt.change != nil {
				tt.change(&c)
			}
			h, err := newHTTPCheck(c, func(s string) string { return s })
			if err != nil {
				t.Fatal(err)
			}
			good, answer := h.check(time.Now().Add(timeout))
			matches := false
			for part := range strings.SplitSeq(tt.want, "|") {
				matches = matches || strings.Contains(answer, part)
			}
			if good != tt.good || !matches {
				t.Errorf("%t, %q, expected %t, %q", good, answer, tt.good, tt.want)
			}
		})
	}
}

// The request of an http check must match the configuration, with one line for each header.
func TestTheRequest(t *testing.T) {
	got := make(chan string, 1)
	l := startServer(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		buf := make([]byte, 4096)
		n, _ := c.Read(buf)
		got <- string(buf[:n])
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\n\n")
	})
	_, port, _ := net.SplitHostPort(l.Addr().String())
	c := config.Check{Timeout: time.Minute, HTTP: config.HTTPCheck{
		Port: "{port}", Path: "/a b", Status: "200", Headers: map[string]string{"host": "web", "X-Token": "{secret}"},
	}}
	h, err := newHTTPCheck(c, strings.NewReplacer("{port}", port, "{secret}", "a\r\nEvil: 1").Replace)
	if err != nil {
		t.Fatal(err)
	}
	if good, answer := h.check(time.Now().Add(time.Minute)); !good {
		t.Fatal(answer)
	}
	request := <-got
	for _, want := range []string{"GET /a%20b HTTP/1.1\r\n", "\r\nHost: web\r\n", "\r\nX-Token: a  Evil: 1\r\n", "\r\nConnection: close\r\n"} {
		if !strings.Contains(request, want) {
			t.Errorf("no %q in %q", want, request)
		}
	}
	if strings.Contains(request, "\r\nHost: 127") {
		t.Errorf("two hosts in %q", request)
	}
}

func TestTCPAnswers(t *testing.T) {
	l := startServer(t, "tcp", "127.0.0.1:0", discardInput)
	look := func(target string) (bool, string) {
		to, err := parseAddresses(target)
		if err != nil {
			return false, err.Error()
		}
		return (&tcpCheck{to, true, time.Second}).check(time.Now().Add(time.Second))
	}
	if good, answer := look(l.Addr().String()); !good {
		t.Error(answer)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	if good, answer := look("localhost:" + port); !good {
		t.Error(answer)
	}
	at, _ := parseAddresses(l.Addr().String())
	here := tcpCheck{at, true, time.Second}
	if good, answer, over := here.connect(time.Time{}); !good || !over {
		t.Errorf("without waiting: %t, %q, %t", good, answer, over)
	}
	l.Close()
	if good, answer := look(l.Addr().String()); good || answer != "connection refused" {
		t.Errorf("%t, %q", good, answer)
	}
	if good, answer, over := here.connect(time.Time{}); good || !over || answer != "connection refused" {
		t.Errorf("without waiting: %t, %q, %t", good, answer, over)
	}
}

// A server that accepts no connections must not delay other checks. The scheduler makes the checks of ports on this machine.
func TestAFullQueueOfConnectionsHoldsUpNoOtherCheck(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	at, err2 := unix.Getsockname(fd)
	if err = errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	full := tcpCheck{[]unix.Sockaddr{at}, true, time.Millisecond}
	for range 5 {
		good, answer, over := full.connect(time.Time{})
		if over && !good {
			t.Fatal(answer)
		}
		if !over {
			if good, answer := full.check(time.Now().Add(full.timeout)); good || answer != "no answer within 1ms" {
				t.Errorf("%t, %q", good, answer)
			}
			return
		}
	}
	t.Error("the queue is never full")
}

func TestAddressesOfTCPChecks(t *testing.T) {
	look := func(target string) (bool, string) {
		_, err := parseAddresses(target)
		return err == nil, ""
	}
	for _, bad := range []string{"127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "example.com:80", ":80", "[::1%lo]:80"} {
		if good, _ := look(bad); good {
			t.Errorf("%q is an address", bad)
		}
	}
}

// unix and file checks must follow no link, because the agent may have made the link.
func TestUnixAndFileFollowNoLink(t *testing.T) {
	dir, err := os.MkdirTemp("", "probe") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	startServer(t, "unix", filepath.Join(dir, "sock"), discardInput)
	old := time.Now().Add(-time.Hour)
	for name, make := range map[string]func(path string) error{
		"new":      func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"old":      func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"link":     func(p string) error { return os.Symlink(filepath.Join(dir, "new"), p) },
		"socklink": func(p string) error { return os.Symlink(filepath.Join(dir, "sock"), p) },
		"dirlink":  func(p string) error { return os.Symlink(dir, p) },
		"fifo":     func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		if err := make(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(filepath.Join(dir, "old"), old, old); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for path, want := range map[string]string{
		"new": "", "old": "it was not written for more than 1m0s", "none": "it does not exist", "link": "it is a symbolic link", "dirlink/new": "a symbolic link is on the way",
	} {
		f := &fileCheck{pathCheck{diskCall{timeout: time.Minute}, filepath.Join(dir, path), fsutil.ProcessActor()}, time.Minute, freshness{}}
		if good, answer := f.check(deadline); good != (want == "") || want != "" && answer != want {
			t.Errorf("file %s: %t, %q", path, good, answer)
		}
	}
	for path, want := range map[string]string{
		"sock": "", "none": "it does not exist", "socklink": "it is not a socket", "new": "it is not a socket", "fifo": "it is not a socket", "dirlink/sock": "a symbolic link is on the way",
	} {
		u := &unixCheck{pathCheck{diskCall{timeout: time.Minute}, filepath.Join(dir, path), fsutil.ProcessActor()}}
		if good, answer := u.check(deadline); good != (want == "") || want != "" && answer != want {
			t.Errorf("socket %s: %t, %q", path, good, answer)
		}
	}
}

// No thread of PID 1 may wait for a socket that the checked program passes. The close of a connection whose queue has a TCP
// socket that lingers may take a day.
func TestASocketOfAnAgentKeepsNoThread(t *testing.T) {
	dir, err := os.MkdirTemp("", "probe") //nolint:usetesting // a short path, because the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "sock")
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrUnix{Name: path}), unix.Listen(listener, 1)); err != nil {
		t.Fatal(err)
	}
	passed := testkit.LingeringSocket(t)
	var over atomic.Bool
	var agent sync.WaitGroup
	defer agent.Wait()
	defer over.Store(true)
	agent.Go(func() {
		for !over.Load() { // no pause, because the program must send the socket before the check closes the connection
			if fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC); err == nil {
				if passed >= 0 && unix.Sendmsg(fd, []byte("G"), unix.UnixRights(passed), nil, unix.MSG_NOSIGNAL) == nil {
					unix.Close(passed) // the only other descriptor is in the queue of the check's connection
					passed = -1
				}
				unix.Close(fd)
			}
		}
	})
	u := &unixCheck{pathCheck{diskCall{timeout: 20 * time.Second}, path, fsutil.ProcessActor()}}
	for range 1000 {
		if good, answer := u.check(time.Now().Add(u.timeout)); !good && answer != "its queue of connections is full" {
			t.Fatal(answer)
		}
	}
}

// Only one call of a check may wait for a disk that hangs. Later calls must fail at once.
func TestADiskThatHangsHoldsUpOneLook(t *testing.T) {
	p := &diskCall{timeout: 10 * time.Millisecond}
	hang := make(chan struct{})
	calls := 0
	call := func() (bool, string) { calls++; <-hang; return true, "" }
	for _, want := range []string{"no answer within 10ms", "an earlier check still waits for the disk"} {
		if good, answer := p.runCall(time.Now().Add(10*time.Millisecond), call); good || answer != want {
			t.Errorf("%t, %q, expected %q", good, answer, want)
		}
	}
	close(hang)
	for p.waiting.Load() {
		<-time.After(time.Millisecond)
	}
	if good, answer := p.runCall(time.Now().Add(time.Minute), func() (bool, string) { return true, "x" }); !good || answer != "x" || calls != 1 {
		t.Errorf("when it answers again: %t, %q, %d calls", good, answer, calls)
	}
}

// A request larger than the socket's buffer must be sent completely.
func TestALongRequestIsSentWhole(t *testing.T) {
	t.Parallel()
	const long = 16 << 20
	l := startServer(t, "tcp", "127.0.0.1:0", func(c net.Conn) {
		got := 0
		for buf := make([]byte, 1<<16); got < long; {
			n, err := c.Read(buf)
			if got += n; err != nil {
				return
			}
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	})
	c := config.Check{Timeout: time.Minute, HTTP: config.HTTPCheck{URL: "http://" + l.Addr().String(), Status: "200", Headers: map[string]string{"X": strings.Repeat("x", long)}}}
	h, err := newHTTPCheck(c, func(s string) string { return s })
	if err != nil {
		t.Fatal(err)
	}
	if good, answer := h.check(time.Now().Add(c.Timeout)); !good {
		t.Error(answer)
	}
}
