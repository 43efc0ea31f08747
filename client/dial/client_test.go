package dial_test

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
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) {
	// This process is the child of TestDialTellsAForbiddenSocket.
	if candidates := os.Getenv("CLIENT_TEST_DIAL"); candidates != "" {
		if os.Getenv("CLIENT_TEST_PROC") != "" { // This process is PID 1 of the namespace that asProcess1 created.
			_ = syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, "")
			if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
				fmt.Print(err)
			}
		}
		_, err := dial.Dial(strings.Split(candidates, "|"))
		fmt.Print(errors.Is(err, client.ErrNotAllowed), errors.Is(err, client.ErrUnreachable), " ", err)
		os.Exit(0)
	}
	testkit.IsolateProcess()
	goleak.VerifyTestMain(m)
}

// serveHTTP answers HTTP on a socket until the end of the test.
func serveHTTP(t *testing.T, h http.HandlerFunc) *dial.Client {
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
	return dial.New(socket)
}

// serveConns calls f for each connection, one after the other.
func serveConns(t *testing.T, f func(net.Conn)) *dial.Client {
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
	return dial.New(socket)
}

func TestRequestsAreWhatTheServerExpects(t *testing.T) {
	var got string
	c := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = strings.TrimSpace(r.Method + " " + r.RequestURI + " " + string(body))
		if r.URL.Path == "/v1/rescan" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set(client.ServicesDownHeader, "0")
		_, _ = io.WriteString(w, "{}\n")
	})
	ctx := t.Context()
	for _, tt := range []struct {
		want string
		call func() error
	}{
		{"GET /v1/status", func() error { _, err := c.Status(ctx); return err }},
		{"GET /v1/status?name=a&name=b+c", func() error { _, err := c.Status(ctx, "a", "b c"); return err }},
		{"GET /v1/status?as=table&name=a", func() error { _, _, err := c.StatusTable(ctx, client.TableFormat{}, "a"); return err }},
		{"GET /v1/services/a%2Fb%3F", func() error { _, err := c.Service(ctx, "a/b?"); return err }},
		{`POST /v1/services/x/start {"wait":false}`, func() error { _, err := c.Start(ctx, "x", client.WaitOptions{}); return err }},
		{`POST /v1/services/x/stop {"wait":true}`, func() error { _, err := c.Stop(ctx, "x", client.WaitOptions{Wait: true}); return err }},
		{
			`POST /v1/services/x/restart {"wait":true,"timeout_ms":1500}`,
			func() error {
				_, err := c.Restart(ctx, "x", client.WaitOptions{Wait: true, Timeout: 1500 * time.Millisecond})
				return err
			},
		},
		{ // the timeout is rounded up to 1 ms, because 0 would mean the default
			`POST /v1/services/x/start {"wait":true,"timeout_ms":1}`,
			func() error {
				_, err := c.Start(ctx, "x", client.WaitOptions{Wait: true, Timeout: time.Microsecond})
				return err
			},
		},
		{"POST /v1/rescan", func() error { return c.Rescan(ctx) }},
		{"POST /v1/reload", func() error { _, err := c.Reload(ctx, client.Reload{}); return err }},
		{"GET /v1/config", func() error { _, err := c.Config(ctx); return err }},
		{"GET /v1/health", func() error { _, err := c.Health(ctx); return err }},
		{"GET /v1/slots", func() error { _, err := c.Slots(ctx); return err }},
		{
			`POST /v1/slots/control {"dir":"/run/service/a","flags":"du"}`,
			func() error { return c.SlotControl(ctx, "/run/service/a", "du") },
		},
		{`POST /v1/slots/scan {"flags":"an"}`, func() error { return c.ControlScanner(ctx, "an") }},
		{"GET /v1/events", func() error { return c.Events(ctx, client.EventOptions{}, ignoreEvent) }},
		{"GET /v1/events?last=0", func() error { return c.Events(ctx, client.EventOptions{MaxPast: -1}, ignoreEvent) }},
		{
			"GET /v1/events?follow=1&last=5&since=7",
			func() error {
				return c.Events(ctx, client.EventOptions{AfterSeq: 7, MaxPast: 5, Follow: true}, ignoreEvent)
			},
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

func ignoreEvent(client.Event) error { return nil }

func TestASlotIsAskedForByItsDirectory(t *testing.T) {
	var got string
	slots := `{"slots":[{"name":"a","pid":7}]}`
	c := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.RequestURI
		_, _ = io.WriteString(w, slots)
	})
	for want, ask := range map[string]func() (client.Slot, error){
		"GET /v1/slots?dir=%2Frun%2Fservice%2Fa+b": func() (client.Slot, error) { return c.Slot(t.Context(), "/run/service/a b") },
		"GET /v1/slots/wait?dir=%2Fa&until=r12":    func() (client.Slot, error) { return c.SlotWait(t.Context(), "/a", "r12") },
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
	var kind client.Kind
	c := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_ = json.NewEncoder(w).Encode(client.ErrorReply{Error: client.Error{Kind: kind, Message: "because"}})
	})
	sentinels := []error{client.ErrUnreachable, client.ErrNotAllowed, client.ErrUnknown, client.ErrBadRequest}
	for k, want := range map[client.Kind]error{
		client.KindUnknown: client.ErrUnknown, client.KindNotAllowed: client.ErrNotAllowed, client.KindBadRequest: client.ErrBadRequest,
		client.KindFailed: nil, client.KindTimeout: nil, client.KindStopping: nil, client.KindInternal: nil,
	} {
		kind = k
		_, err := c.Start(t.Context(), "coder", client.WaitOptions{})
		var e *client.Error
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
	c := dial.New("/nowhere") // The client sends no request to this path.
	for _, name := range []string{"", ".", ".."} {
		if _, err := c.Stop(t.Context(), name, client.WaitOptions{}); !errors.Is(err, client.ErrUnknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestTheCallersContextEndsACall(t *testing.T) {
	asked := make(chan struct{})
	c := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-asked
		cancel()
	}()
	_, err := c.Status(ctx)
	if !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrUnreachable) || err.Error() != "cannot get the status: context canceled" {
		t.Errorf("got %v", err)
	}
}

func TestAHinitThatDoesNotAnswerIsUnreachable(t *testing.T) {
	hold := make(chan struct{})
	c := serveConns(t, func(net.Conn) { <-hold })
	defer close(hold)
	err := c.RequestPath(t.Context(), "/v1/status", 50*time.Millisecond)
	if !errors.Is(err, client.ErrUnreachable) || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("got %v", err)
	}
}

func TestAnInvalidAnswerIsReportedAsInvalid(t *testing.T) {
	t.Parallel() // This test mostly waits, so it runs beside others.
	for name, tt := range map[string]struct {
		answer string
		kind   client.Kind
	}{
		"nothing":       {"", client.KindUnreachable},
		"garbage":       {"SSH-2.0-OpenSSH\r\n\r\n", client.KindInternal},
		"another 404":   {"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", client.KindInternal},
		"no JSON":       {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnope", client.KindInternal},
		"half a header": {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n", client.KindUnreachable},
		"half a body":   {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"version\":", client.KindUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			c := serveConns(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 4096)) // The buffer holds the whole request.
				_, _ = io.WriteString(c, tt.answer)
			})
			_, err := c.Status(t.Context())
			var e *client.Error
			if !errors.As(err, &e) || e.Kind != tt.kind {
				t.Errorf("got %v (%#v)", err, e)
			}
		})
	}
}

func TestABusyHinitIsAskedAgain(t *testing.T) {
	var times atomic.Int32
	c := serveConns(t, func(c net.Conn) {
		if times.Add(1) < 3 { // This server answers without reading the request, as hinit does.
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
		c := serveConns(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			if times.Add(1) > 2 {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
			}
		})
		c.SetCutRetryTimeout(40 * time.Second) // With this time, the limit on attempts ends the repetition.
		var err error
		switch method {
		case "status":
			_, err = c.Status(t.Context())
		case "stop":
			_, err = c.Stop(t.Context(), "coder", client.WaitOptions{Wait: true, Timeout: time.Minute})
		case "restart":
			_, err = c.Restart(t.Context(), "coder", client.WaitOptions{Wait: true, Timeout: time.Minute})
		}
		if again && (err != nil || times.Load() != 3) || !again && (!errors.Is(err, client.ErrUnreachable) || times.Load() != 1) {
			t.Errorf("%s: %v after %d connections", method, err, times.Load())
		}
	}
}

func TestEventsEndAsTheStreamEnds(t *testing.T) {
	line := func(seq int) string { return fmt.Sprintf("{\"seq\":%d,\"at\":\"2026-01-02T03:04:05Z\"}\n", seq) }
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	const head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	stream := func(answer string) *dial.Client {
		return serveConns(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, answer)
		})
	}
	collect := func(c *dial.Client) (seqs []uint64, lost uint64, err error) {
		err = c.Events(t.Context(), client.EventOptions{Follow: true}, func(e client.Event) error {
			if lost += e.LostCount; e.LostCount == 0 {
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
	if !errors.Is(err, client.ErrUnreachable) || fmt.Sprint(seqs) != "[1]" {
		t.Errorf("a cut stream: %v, %v", seqs, err)
	}
	enough := errors.New("enough")
	err = stream(head+chunk(line(1)+line(2))).Events(t.Context(), client.EventOptions{}, func(client.Event) error { return enough })
	if !errors.Is(err, enough) {
		t.Errorf("a reader that has enough: %v", err)
	}
}

func TestOnlyTheStandardLibraryIsImported(t *testing.T) {
	files, err := filepath.Glob("../*.go")
	own, err2 := filepath.Glob("*.go")
	files = append(files, own...)
	if err := errors.Join(err, err2); err != nil || len(files) < 10 {
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
			if strings.Contains(first, ".") || first == "hinit" && i.Path.Value != `"hinit/client"` {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
	}
}
