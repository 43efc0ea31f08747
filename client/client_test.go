package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if candidates := os.Getenv("CLIENT_TEST_DIAL"); candidates != "" { // the child of TestDialTellsAForbiddenSocket
		_, err := Dial(strings.Split(candidates, "|"))
		fmt.Print(errors.Is(err, ErrNotAllowed), errors.Is(err, ErrUnreachable), " ", err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// serve answers HTTP on a socket until the end of the test.
func serve(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	return New(socket)
}

// listen lets f speak to each connection that comes, one after the other.
func listen(t *testing.T, f func(net.Conn)) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return New(socket)
}

func TestRequestsAreWhatTheServerExpects(t *testing.T) {
	var got string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = strings.TrimSpace(r.Method + " " + r.RequestURI + " " + string(body))
		if r.URL.Path == "/v1/rescan" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set(DownHeader, "0")
		_, _ = io.WriteString(w, "{}\n")
	})
	ctx := t.Context()
	for _, tt := range []struct {
		want string
		call func() error
	}{
		{"GET /v1/status", func() error { _, err := c.Status(ctx); return err }},
		{"GET /v1/status?name=a&name=b+c", func() error { _, err := c.Status(ctx, "a", "b c"); return err }},
		{"GET /v1/status?as=table&name=a", func() error { _, _, err := c.StatusTable(ctx, Look{}, "a"); return err }},
		{"GET /v1/services/a%2Fb%3F", func() error { _, err := c.Service(ctx, "a/b?"); return err }},
		{`POST /v1/services/x/start {"wait":false}`, func() error { _, err := c.Start(ctx, "x", Wait{}); return err }},
		{`POST /v1/services/x/stop {"wait":true}`, func() error { _, err := c.Stop(ctx, "x", Wait{Wait: true}); return err }},
		{
			`POST /v1/services/x/restart {"wait":true,"timeout_ms":1500}`,
			func() error { _, err := c.Restart(ctx, "x", Wait{true, 1500 * time.Millisecond}); return err },
		},
		{ // never 0, which would be the default
			`POST /v1/services/x/start {"wait":true,"timeout_ms":1}`,
			func() error { _, err := c.Start(ctx, "x", Wait{true, time.Microsecond}); return err },
		},
		{"POST /v1/rescan", func() error { return c.Rescan(ctx) }},
		{"POST /v1/reload", func() error { _, err := c.Reload(ctx, Reload{}); return err }},
		{"GET /v1/config", func() error { _, err := c.Config(ctx); return err }},
		{"GET /v1/health", func() error { _, err := c.Health(ctx); return err }},
		{"GET /v1/slots", func() error { _, err := c.Slots(ctx); return err }},
		{
			`POST /v1/slots/control {"dir":"/run/service/a","flags":"du"}`,
			func() error { return c.SlotControl(ctx, "/run/service/a", "du") },
		},
		{`POST /v1/slots/scan {"flags":"an"}`, func() error { return c.SlotScan(ctx, "an") }},
		{"GET /v1/events", func() error { return c.Events(ctx, EventOptions{}, noEvent) }},
		{"GET /v1/events?last=0", func() error { return c.Events(ctx, EventOptions{Last: -1}, noEvent) }},
		{
			"GET /v1/events?follow=1&last=5&since=7",
			func() error { return c.Events(ctx, EventOptions{7, 5, true}, noEvent) },
		},
	} {
		if err := tt.call(); err != nil {
			t.Errorf("%s: %v", tt.want, err)
		}
		if got != tt.want {
			t.Errorf("sent %s, want %s", got, tt.want)
		}
	}
}

func noEvent(Event) error { return nil }

func TestASlotIsAskedForByItsDirectory(t *testing.T) {
	var got string
	slots := `{"slots":[{"name":"a","pid":7}]}`
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.RequestURI
		_, _ = io.WriteString(w, slots)
	})
	for want, ask := range map[string]func() (Slot, error){
		"GET /v1/slots?dir=%2Frun%2Fservice%2Fa+b": func() (Slot, error) { return c.Slot(t.Context(), "/run/service/a b") },
		"GET /v1/slots/wait?dir=%2Fa&until=r12":    func() (Slot, error) { return c.SlotWait(t.Context(), "/a", "r12") },
	} {
		if s, err := ask(); err != nil || s.Name != "a" || s.PID != 7 || got != want {
			t.Errorf("%s: %+v, %v; sent %s", want, s, err, got)
		}
	}
	slots = `{"slots":[]}`
	if s, err := c.Slot(t.Context(), "/a"); err == nil {
		t.Errorf("an answer without a slot is taken for %+v", s)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	var kind Kind
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_ = json.NewEncoder(w).Encode(ErrorReply{Error{Kind: kind, Message: "because"}})
	})
	sentinels := []error{ErrUnreachable, ErrNotAllowed, ErrUnknown, ErrBadRequest}
	for k, want := range map[Kind]error{
		KindUnknown: ErrUnknown, KindNotAllowed: ErrNotAllowed, KindBadRequest: ErrBadRequest,
		KindFailed: nil, KindTimeout: nil, KindStopping: nil, KindInternal: nil,
	} {
		kind = k
		_, err := c.Start(t.Context(), "coder", Wait{})
		var e *Error
		if !errors.As(err, &e) || e.Kind != k || e.Message != "because" || err.Error() != `cannot start "coder": because` {
			t.Errorf("%s: got %#v", k, err)
		}
		for _, s := range sentinels {
			if errors.Is(err, s) != errors.Is(want, s) {
				t.Errorf("%s: errors.Is(%v) is %v", k, s, !errors.Is(err, s))
			}
		}
	}
}

func TestNamesThatNoPathCanHoldAreUnknown(t *testing.T) {
	c := New("/nowhere") // nothing is sent
	for _, name := range []string{"", ".", ".."} {
		if _, err := c.Stop(t.Context(), name, Wait{}); !errors.Is(err, ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestDialTakesTheFirstThatListens(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	alive := serve(t, nil).Socket()
	missing := filepath.Join(dir, "missing")

	c, err := Dial([]string{missing, stale, alive})
	if err != nil || c.Socket() != alive {
		t.Fatalf("got %v, %v", c, err)
	}
	_, err = Dial([]string{missing, stale})
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), stale) {
		t.Errorf("two that do not listen: %v", err)
	}
	_, err = Dial([]string{stale})
	if !errors.Is(err, ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("one that does not listen: %v", err)
	}
	if _, err = Dial(nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("no candidates: %v", err)
	}
}

// asUser starts this test binary as another user; it needs root.
func asUser(t *testing.T, uid int, env ...string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"test"}, &os.ProcAttr{
		Dir: "/", Env: append(os.Environ(), env...), Files: []*os.File{nil, w, os.Stderr},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}},
	})
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(r)
	if state, err := p.Wait(); err != nil || !state.Success() {
		t.Fatalf("child: %v, %v", state, err)
	}
	return string(out)
}

func TestDialTellsAForbiddenSocket(t *testing.T) {
	private := serve(t, nil).Socket()
	if err := os.Chmod(filepath.Dir(private), 0o700); err != nil {
		t.Fatal(err)
	}
	out := asUser(t, 65534, "CLIENT_TEST_DIAL=/missing/socket|"+private)
	if !strings.HasPrefix(out, "true false cannot reach hinit: this user may not open") {
		t.Errorf("got %s", out)
	}
}

// TestAStrangerThatExchangesTheSocketIsNotTrusted: the directory is checked by whoever lists the candidates, and may be another since.
func TestAStrangerThatExchangesTheSocketIsNotTrusted(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	path := t.TempDir() + "/control.sock"
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	listening := make(chan error, 1)
	go func() { listening <- listenAs(fd, 65534) }() // on a thread that ends with it
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	if _, err := Dial([]string{path}); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "uid 65534 has taken the name") {
		t.Errorf("a stranger's: %v", err)
	}
}

func TestAnAbstractNameThatAStrangerTookIsNotTrusted(t *testing.T) {
	name := "@hinit-client-test-" + strconv.Itoa(os.Getpid())
	l, err := net.Listen("unix", name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Dial([]string{name}); err != nil {
		t.Errorf("one's own: %v", err)
	}
	if os.Geteuid() == 0 {
		if out := asUser(t, 65534, "CLIENT_TEST_DIAL="+name); !strings.HasPrefix(out, "false false") {
			t.Errorf("root's: %s", out)
		}
	}
	stranger := "@hinit-client-test-stranger-" + strconv.Itoa(os.Getpid())
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	// listen(2) takes the effective user for SO_PEERCRED; this thread alone becomes a stranger.
	listening := make(chan error, 1)
	go func() {
		if os.Geteuid() != 0 {
			listening <- errors.New("needs root")
			return
		}
		err := syscall.Bind(fd, &syscall.SockaddrUnix{Name: stranger})
		if err == nil {
			err = listenAs(fd, 65534)
		}
		listening <- err
	}()
	if err := <-listening; err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if _, err := Dial([]string{stranger}); !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "uid 65534 has taken the name") {
		t.Errorf("a stranger's: %v", err)
	}
}

func TestTheCallersContextEndsACall(t *testing.T) {
	asked := make(chan struct{})
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := c.Status(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnreachable) || err.Error() != "cannot get the status: context canceled" {
		t.Errorf("got %v", err)
	}
}

func TestAHinitThatDoesNotAnswerIsUnreachable(t *testing.T) {
	hold := make(chan struct{})
	c := listen(t, func(net.Conn) { <-hold })
	defer close(hold)
	_, err := c.send(t.Context(), question{method: "GET", path: "/v1/status", limit: 50 * time.Millisecond})
	if err == nil || err.Kind != KindUnreachable || !strings.Contains(err.Message, "does not answer") {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsNoAnswerIsToldAsSuch(t *testing.T) {
	for name, tt := range map[string]struct {
		answer string
		kind   Kind
	}{
		"nothing":       {"", KindUnreachable},
		"garbage":       {"SSH-2.0-OpenSSH\r\n\r\n", KindInternal},
		"another 404":   {"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", KindInternal},
		"no JSON":       {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope", KindInternal},
		"half a header": {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", KindUnreachable},
		"half a body":   {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"version\":", KindUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			c := listen(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096)) // the request fits
				_, _ = io.WriteString(c, tt.answer)
			})
			_, err := c.Status(t.Context())
			var e *Error
			if !errors.As(err, &e) || e.Kind != tt.kind {
				t.Errorf("got %v (%#v)", err, e)
			}
		})
	}
}

func TestABusyHinitIsAskedAgain(t *testing.T) {
	var times atomic.Int32
	c := listen(t, func(c net.Conn) {
		if times.Add(1) < 3 { // answered without reading, as the server does
			body := `{"error":{"kind":"busy","message":"too many"}}`
			_, _ = fmt.Fprintf(c, "HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			return
		}
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"version\":1}")
	})
	s, err := c.Status(t.Context())
	if err != nil || s.Version != 1 || times.Load() != 3 {
		t.Errorf("got %+v, %v after %d", s, err, times.Load())
	}
}

func TestWhatIsCutWhileHinitIsReplacedIsAskedAgain(t *testing.T) {
	for method, again := range map[string]bool{"status": true, "stop": true, "restart": false} {
		var times atomic.Int32
		c := listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			if times.Add(1) > 2 {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			}
		})
		c.cutTime = 40 * time.Second // what is counted here are attempts
		var err error
		switch method {
		case "status":
			_, err = c.Status(t.Context())
		case "stop":
			_, err = c.Stop(t.Context(), "coder", Wait{Wait: true, Timeout: time.Minute})
		case "restart":
			_, err = c.Restart(t.Context(), "coder", Wait{Wait: true, Timeout: time.Minute})
		}
		if again && (err != nil || times.Load() != 3) || !again && (!errors.Is(err, ErrUnreachable) || times.Load() != 1) {
			t.Errorf("%s: %v after %d connections", method, err, times.Load())
		}
	}
}

func TestEventsEndAsTheStreamEnds(t *testing.T) {
	line := func(seq int) string { return fmt.Sprintf("{\"seq\":%d,\"at\":\"2026-01-02T03:04:05Z\"}\n", seq) }
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	stream := func(answer string) *Client {
		return listen(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, answer)
		})
	}
	collect := func(c *Client) (seqs []uint64, lost uint64, err error) {
		err = c.Events(t.Context(), EventOptions{Follow: true}, func(e Event) error {
			if lost += e.Lost; e.Lost == 0 {
				seqs = append(seqs, e.Seq)
			}
			return nil
		})
		return seqs, lost, err
	}
	seqs, lost, err := collect(stream(head + chunk("{\"lost\":3}\n"+line(4)) + chunk(line(5)) + "0\r\n\r\n"))
	if err != nil || lost != 3 || fmt.Sprint(seqs) != "[4 5]" {
		t.Errorf("a whole stream: %v, lost %d, %v", seqs, lost, err)
	}
	seqs, _, err = collect(stream(head + chunk(line(1))))
	if !errors.Is(err, ErrUnreachable) || fmt.Sprint(seqs) != "[1]" {
		t.Errorf("a cut stream: %v, %v", seqs, err)
	}
	enough := errors.New("enough")
	err = stream(head+chunk(line(1)+line(2))).Events(t.Context(), EventOptions{}, func(Event) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("a reader that has enough: %v", err)
	}
}

func TestOnlyTheStandardLibraryIsImported(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 5 {
		t.Fatalf("files: %v, %v", files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			first, _, _ := strings.Cut(strings.Trim(i.Path.Value, `"`), "/")
			if strings.Contains(first, ".") || first == "hinit" {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}
