package daemon

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"hinit/internal/control"
	"hinit/internal/testkit"
	"hinit/sandbox"
	"hinit/sandbox/mux"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = 60 * time.Second

func allowAnybody(Peer) error { return nil }

// startServer starts a server with a handler, and returns the path of its socket.
func startServer(t *testing.T, s *Server) string {
	t.Helper()
	if s.CheckPeer == nil {
		s.CheckPeer = allowAnybody
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return socket
}

func mustDial(t *testing.T, socket string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestStreamsAndExitCode(t *testing.T) {
	var seen Peer
	socket := startServer(t, &Server{Handle: func(_ context.Context, from Peer, req Request, s Streams) int {
		seen = from
		fmt.Fprintf(s.Err, "%q %q", req.Args, req.Env["A"])
		if _, err := io.Copy(s.Out, s.In); err != nil {
			fmt.Fprint(s.Err, err)
		}
		return 42
	}})
	data := make([]byte, 8<<20) // The data fills the stream's window several times.
	_, _ = rand.Read(data)
	var out, errs bytes.Buffer
	code, err := mustDial(t, socket).Run(t.Context(), Request{Args: []string{"a", "b c"}, Env: map[string]string{"A": "é"}, Stdin: true}, Streams{In: bytes.NewReader(data), Out: &out, Err: &errs})
	if err != nil || code != 42 {
		t.Fatalf("code %d, error %v", code, err)
	}
	if !bytes.Equal(out.Bytes(), data) {
		t.Errorf("%d bytes came back, or other ones", out.Len())
	}
	if errs.String() != `["a" "b c"] "é"` {
		t.Errorf("standard error: %s", errs.String())
	}
	if seen.PID != os.Getpid() || seen.UID != uint32(os.Getuid()) {
		t.Errorf("the caller is %+v", seen)
	}
}

// TestCallerGone checks that a command ends with its caller, even if the command does not read its
// input.
func TestCallerGone(t *testing.T) {
	for _, stdin := range []int{0, 1, mux.StreamWindow, 4 * mux.StreamWindow} {
		begun, ended := make(chan struct{}), make(chan struct{})
		socket := startServer(t, &Server{Handle: func(ctx context.Context, _ Peer, _ Request, _ Streams) int {
			close(begun)
			<-ctx.Done()
			close(ended)
			return 0
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := mustDial(t, socket).Run(ctx, Request{Stdin: true}, Streams{In: io.LimitReader(rand.Reader, int64(stdin)), Out: io.Discard, Err: io.Discard})
			done <- err
		}()
		<-begun
		cancel()
		select {
		case <-ended:
		case <-time.After(testTimeout):
			t.Fatalf("with %d bytes of input the command does not know that its caller has gone", stdin)
		}
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// TestServiceGone checks the caller's error when the service ends the connection. Only after the
// command was accepted, the error may say that it may have run.
func TestServiceGone(t *testing.T) {
	for _, begun := range []bool{true, false} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				r, w := mux.NewReader(c), mux.NewWriter(c)
				_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version})
				_, _ = r.Next()
				f, _ := r.Next()
				if begun {
					_ = w.Write(mux.KindBegun, f.Channel, mux.EncodeNumber(0))
				}
				_ = w.Write(mux.KindOutput, f.Channel, []byte("said"))
				_ = c.Close()
			}
		}()
		var out bytes.Buffer
		_, err = mustDial(t, l.Addr().String()).Run(t.Context(), Request{}, Streams{Out: &out, Err: io.Discard})
		if errors.Is(err, ErrServiceLost) != begun || strings.Contains(err.Error(), "has not begun") == begun || out.String() != "said" {
			t.Errorf("error %v after %q", err, out.String())
		}
	}
}

func TestDial(t *testing.T) {
	dir := t.TempDir()
	if _, err := Dial(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, ErrNoService) {
		t.Errorf("without a service: %v", err)
	}
	// A client must wait for a service that is restarting.
	socket := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	go func() {
		<-time.After(3 * dialRetryPause)
		os.Remove(socket)
		if l, err := net.Listen("unix", socket); err == nil {
			c, _ := l.Accept()
			c.Close()
			l.Close()
		}
	}()
	c, err := Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	c.conn.Close()
}

func TestWhoMayAsk(t *testing.T) {
	ran := false
	socket := startServer(t, &Server{CheckPeer: func(p Peer) error { return fmt.Errorf("uid %d is not allowed to", p.UID) }, Handle: func(context.Context, Peer, Request, Streams) int {
		ran = true
		return 0
	}})
	var errs bytes.Buffer
	code, err := mustDial(t, socket).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: &errs})
	if err != nil || code != codeNotAllowed || ran || !strings.Contains(errs.String(), "is not allowed to") {
		t.Errorf("code %d, error %v, %s", code, err, errs.String())
	}
}

// TestARequestThatPanicsEndsNoOther checks that a panic in one user's request does not end other
// users' commands.
func TestARequestThatPanicsEndsNoOther(t *testing.T) {
	var told atomic.Int32
	socket := startServer(t, &Server{Panicked: func(fault any, stack []byte) {
		if fault == "a fault" && bytes.Contains(stack, []byte("TestARequestThatPanics")) {
			told.Add(1)
		}
	}, CheckPeer: func(Peer) error {
		if told.Load() == 2 {
			panic("a fault")
		}
		return nil
	}, Handle: func(_ context.Context, _ Peer, req Request, s Streams) int {
		if len(req.Args) > 0 {
			panic("a fault")
		}
		return 7
	}})
	var errs bytes.Buffer
	code, err := mustDial(t, socket).Run(t.Context(), Request{Args: []string{"x"}}, Streams{Out: io.Discard, Err: &errs})
	if err != nil || code != 1 || !strings.Contains(errs.String(), "its log has the details") || told.Load() != 1 {
		t.Errorf("code %d, error %v, told %d times: %s", code, err, told.Load(), errs.String())
	}
	if code, err := mustDial(t, socket).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: io.Discard}); err != nil || code != 7 {
		t.Errorf("the next request: code %d, error %v", code, err)
	}
	told.Store(2) // From now on, the goroutine of a connection panics.
	if _, err := mustDial(t, socket).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: io.Discard}); err == nil {
		t.Error("a connection that panicked answered")
	}
	// The service closes the connection before it reports the panic.
	testkit.Until(t, "the panic is told", func() bool { return told.Load() == 3 })
	told.Store(0)
	if code, err := mustDial(t, socket).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: io.Discard}); err != nil || code != 7 {
		t.Errorf("after a connection that panicked: code %d, error %v", code, err)
	}
}

func TestBadRequests(t *testing.T) {
	socket := startServer(t, &Server{Handle: func(context.Context, Peer, Request, Streams) int {
		t.Error("a bad request was run")
		return 0
	}})
	var half bytes.Buffer
	w := mux.NewWriter(&half)
	_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version})
	hello := half.Len()
	_ = w.Write(mux.KindOpen, 1, []byte("{x"))
	notJSON := bytes.Clone(half.Bytes())
	half.Truncate(hello)
	_ = w.Write(mux.KindInput, 1, []byte("a"))
	for _, bad := range [][]byte{
		nil, []byte("GET / HTTP/1.1\r\n\r\n"), notJSON, notJSON[hello:], half.Bytes(), half.Bytes()[:hello+3],
	} {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		c.Write(bad)
		c.(*net.UnixConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(testTimeout))
		if _, err := io.ReadAll(c); err != nil && !errors.Is(err, unix.ECONNRESET) { // The server resets a connection with unread input.
			t.Errorf("%q: %v", bad, err)
		}
		c.Close()
	}
}

// TestInputBeyondTheWindow checks that the server closes the connection of a caller that sends more than its window,
// and keeps no memory for it.
func TestInputBeyondTheWindow(t *testing.T) {
	ended := make(chan struct{})
	socket := startServer(t, &Server{Handle: func(ctx context.Context, _ Peer, _ Request, _ Streams) int {
		<-ctx.Done()
		close(ended)
		return 0
	}})
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := mux.NewWriter(c)
	if err := errors.Join(w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version}), w.WriteJSON(mux.KindOpen, 1, Request{Stdin: true})); err != nil {
		t.Fatal(err)
	}
	for range mux.StreamWindow/mux.MaxData + 2 {
		if w.Write(mux.KindInput, 1, make([]byte, mux.MaxData)) != nil {
			break
		}
	}
	select {
	case <-ended:
	case <-time.After(testTimeout):
		t.Fatal("it has not ended")
	}
}

// TestASignalThatIsNone checks that an invalid signal from one caller ends no commands of other callers in the
// container.
func TestASignalThatIsNone(t *testing.T) {
	for _, n := range []uint32{0, 65, 999} {
		ended := make(chan error, 1)
		socket := startServer(t, &Server{Handle: func(ctx context.Context, _ Peer, _ Request, _ Streams) int {
			<-ctx.Done()
			ended <- nil
			return 0
		}})
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		w := mux.NewWriter(c)
		if err := errors.Join(w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version}), w.WriteJSON(mux.KindOpen, 1, Request{}), w.Write(mux.KindPong, 1, mux.EncodeNumber(n))); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func TestResizes(t *testing.T) {
	socket := startServer(t, &Server{Handle: func(ctx context.Context, _ Peer, req Request, s Streams) int {
		fmt.Fprint(s.Out, req.Size, <-s.Resizes)
		return 0
	}})
	resizes := make(chan sandbox.TerminalSize, 1)
	resizes <- sandbox.TerminalSize{Columns: 3, Rows: 4}
	var out bytes.Buffer
	if _, err := mustDial(t, socket).Run(t.Context(), Request{TTY: true, Size: sandbox.TerminalSize{Columns: 1, Rows: 2}}, Streams{Out: &out, Err: io.Discard, Resizes: resizes}); err != nil {
		t.Fatal(err)
	}
	if out.String() != "{1 2} {3 4}" {
		t.Error(out.String())
	}
}

// TestHalfRequests checks that requests that are never completed use a limited amount of memory.
func TestHalfRequests(t *testing.T) {
	s := &Server{Handle: func(context.Context, Peer, Request, Streams) int { return 0 }}
	socket := startServer(t, s)
	part := make([]byte, mux.MaxData)
	for range 2 * maxLongRequestBytes / (3 << 20) {
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetReadDeadline(time.Now().Add(testTimeout))
		r, w := mux.NewReader(c), mux.NewWriter(c)
		_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version})
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write([]byte{byte(mux.KindOpen), 0, 0, 0, 1, 0, 3 << 20 >> 16, 0, 0})
		for range 3<<20/mux.MaxData - 1 {
			if _, err := c.Write(part); err != nil {
				break
			}
		}
		s.mu.Lock()
		for _, kept := range s.longRequestBytes {
			if kept > maxLongRequestBytes {
				t.Errorf("it keeps %d bytes of them", kept)
			}
		}
		s.mu.Unlock()
	}
	if !s.addCount(s.longRequestBytes, 1, maxLongRequestBytes, maxLongRequestBytes) || s.addCount(s.longRequestBytes, 1, 1, maxLongRequestBytes) {
		t.Error("another user is not answered any more, or has no limit")
	}
	s.addCount(s.longRequestBytes, 1, -maxLongRequestBytes, 0)
	if _, err := mustDial(t, socket).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: io.Discard}); err != nil {
		t.Errorf("a short one is not answered any more: %v", err)
	}
}

// TestAnAgentHungTheServiceByTheSocketsThatItPassed checks that passed descriptors can't block the
// service. The kernel closes them during the service's read, and closing a TCP socket may block
// (SO_LINGER).
func TestAnAgentHungTheServiceByTheSocketsThatItPassed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	// Listen makes the socket refuse descriptors from the first connection on, as the service does.
	l, err := control.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) }()
	if unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, 83, 0) != nil { // 83 is SO_PASSRIGHTS
		t.Skip("this kernel can't refuse descriptors; Linux 6.16 can")
	}
	if _, _, err := c.(*net.UnixConn).WriteMsgUnix([]byte("x"), unix.UnixRights(pair[1]), nil); !errors.Is(err, unix.EPERM) {
		t.Error("a descriptor was passed to the service:", err)
	}
}

// TestCallersThatReadNothingUsedUpTheDescriptorsOfTheService checks the limit on one user's
// connections. Such a caller sends a request and many Pings and reads no answers; root must still
// be served.
func TestCallersThatReadNothingUsedUpTheDescriptorsOfTheService(t *testing.T) {
	testkit.NeedRoot(t)
	listener, err := net.Listen("unix", "@"+rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	l := &countingListener{Listener: listener}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &Server{CheckPeer: allowAnybody, Handle: func(_ context.Context, _ Peer, _ Request, s Streams) int {
		time.Sleep(10 * time.Millisecond) // The client sends Pings until a write blocks.
		fmt.Fprintln(s.Err, "too many commands run already")
		return 1
	}}
	go func() { done <- s.Serve(ctx, l) }()
	defer func() { cancel(); <-done }()
	connect := func() net.Conn { // connect opens a connection as user 10000.
		conn := make(chan net.Conn)
		go func() {
			runtime.LockOSThread() // The thread ends with this goroutine, so its user need not be restored.
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err == nil {
				_, _, _ = unix.RawSyscall(unix.SYS_SETRESUID, 10000, 10000, 10000) // The service never limits root, so become another user.
				err = unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
			}
			f := os.NewFile(uintptr(fd), "socket")
			defer f.Close()
			c, err2 := net.FileConn(f)
			if err = errors.Join(err, err2); err != nil {
				t.Error(err)
			}
			conn <- c
		}()
		return <-conn
	}
	ping := append([]byte{byte(mux.KindPing)}, make([]byte, 8)...)
	for range 2 * maxCommands {
		c := connect()
		if c == nil {
			t.FailNow()
		}
		defer c.Close()
		w := mux.NewWriter(c)
		_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version})
		_ = w.WriteJSON(mux.KindOpen, 1, Request{})
		_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
		_, _ = c.Write(bytes.Repeat(ping, 1000))
	}
	for limit := time.Now().Add(5 * time.Second); l.open.Load() > maxCommands+maxWaitingConns; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the service holds %d connections of a user", l.open.Load())
		}
	}
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Conn{c}).Run(t.Context(), Request{}, Streams{Out: io.Discard, Err: io.Discard}); err != nil {
		t.Errorf("root is not answered any more: %v", err)
	}
}

// countingListener is a listener that counts its open connections.
type countingListener struct {
	net.Listener
	open atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.open.Add(1)
	return &countedConn{UnixConn: c.(*net.UnixConn), closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
}

type countedConn struct {
	*net.UnixConn
	closed func()
}

func (c *countedConn) Close() error { c.closed(); return c.UnixConn.Close() }
