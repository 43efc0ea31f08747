package control

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/config"
	"hinit/internal/testkit"
	"hinit/supervisor"
)

func newEmptyBackend() Backend {
	return Backend{
		Loop: emptyLoop{},
		Init: func() client.Init { return client.Init{Version: "of the test"} },
		Boot: Boot{ExpectedServices: func(context.Context, bool) []*supervisor.Service { return nil }},
	}
}

type emptyLoop struct{ Loop }

func (emptyLoop) Snapshot() *supervisor.Snapshot        { return &supervisor.Snapshot{} }
func (emptyLoop) Orphans() uint64                       { return 0 }
func (emptyLoop) ReapNow(context.Context, ...int) error { return nil }

type messageLog chan string

func (t messageLog) Say(format string, args ...any) { t <- fmt.Sprintf(format, args...) }
func (t messageLog) Warn(format string, args ...any) {
	t <- "warning: " + fmt.Sprintf(format, args...)
}

func (t messageLog) next(test *testing.T) string {
	test.Helper()
	select {
	case line := <-t:
		return line
	case <-time.After(testkit.Patience):
		test.Fatal("nothing was said")
		return ""
	}
}

// After the server has detached and reattached the control socket, the socket and its FIFO must answer.
func TestTheSocketOutlivesItsServer(t *testing.T) {
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path, messages := filepath.Join(dir, "control.sock"), make(messageLog, 100)
	s := NewEndpoint(newEmptyBackend(), withDefaults(Options{OtherUsers: config.OthersMayDoNothing, Say: messages.Say, Warn: messages.Warn}))
	ask := func() {
		t.Helper()
		cl := dial.New(path)
		st, err := cl.Status(t.Context())
		if err != nil || st.Init.Version != "of the test" {
			t.Errorf("it answers %+v, %v", st.Init, err)
		}
	}
	order := func() {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, orderFIFOName), []byte("dance\n"), 0); err != nil {
			t.Fatal(err)
		}
		if got := messages.next(t); !strings.HasPrefix(got, "orders: dance: it is none of") {
			t.Errorf("the FIFO says %q", got)
		}
	}
	if socket := s.Detach(); socket != nil {
		t.Errorf("there is a socket before it is opened: %+v", socket)
	}
	s.Reattach(nil)
	if err := s.Open(path); err != nil {
		t.Fatal(err)
	}
	ask()
	order()
	left := s.CloseForReexec()
	if left == nil {
		t.Fatal("it cannot be left")
	}
	s.Reattach(left)
	ask()
	order()
	left = s.CloseForReexec()
	s.Close(t.Context())
	next := NewEndpoint(newEmptyBackend(), withDefaults(Options{OtherUsers: config.OthersMayDoNothing, Say: messages.Say, Warn: messages.Warn}))
	next.Inherit(left)
	if again := next.Detach(); again != left {
		t.Error("a program that has a fault before it serves would lose the socket")
	}
	next.Reattach(nil)
	ask()
	next.Close(t.Context())
	if _, err := dial.New(path).Status(t.Context()); err == nil {
		t.Error("it answers after it was closed")
	}
}

// A line that a shell wrote to the FIFO while hinit re-executed itself must be carried out by the next program. The kernel threw
// it away when the old program closed the FIFO; before that, the old program answered "ask it again" into the log.
func TestAnOrderWrittenDuringAReexecutionWasNotCarriedOut(t *testing.T) {
	path, messages := filepath.Join(socketDir(t), "s"), make(messageLog, 100)
	options := withDefaults(Options{OtherUsers: config.OthersMayDoNothing, Say: messages.Say, Warn: messages.Warn})
	old := NewEndpoint(newEmptyBackend(), options)
	if err := old.Open(path); err != nil {
		t.Fatal(err)
	}
	left := old.CloseForReexec()
	if left == nil {
		t.Fatal("it cannot be left")
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), orderFIFOName), []byte("status\n"), 0); err != nil {
		t.Fatal(err)
	}
	handed := &Socket{Path: left.Path, File: duplicate(t, left.File), Orders: duplicate(t, left.Orders), Dev: left.Dev, Ino: left.Ino}
	old.Close(t.Context())
	next := NewEndpoint(newEmptyBackend(), options)
	next.Inherit(handed)
	next.Reattach(nil)
	defer next.Close(t.Context())
	if got := messages.next(t); !strings.HasPrefix(got, "orders: status: hinit of the test") {
		t.Errorf("the FIFO says %q", got)
	}
}

// duplicate returns the file as the program after execve(2) has it: open although the old program's is closed.
func duplicate(t *testing.T, f *os.File) *os.File {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if err := errors.Join(raw.Control(func(n uintptr) { fd, err = unix.Dup(int(n)) }), err); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "handed over")
}

// stuckListener is a listener whose Close waits for the test.
type stuckListener struct {
	net.Listener
	hang <-chan struct{}
}

func (l stuckListener) Close() error {
	<-l.hang
	return l.Listener.Close()
}

// A stop must not wait for the close of the control socket. A client in the queue of the socket can pass a TCP socket that
// lingers. Before Linux 6.16, the close waits for that TCP socket.
func TestAStopWasHeldUpByAConnectionInTheQueueOfTheSocket(t *testing.T) {
	l, err := Listen("@hinit-test-" + rand.Text())
	if err != nil {
		t.Fatal(err)
	}
	e := NewEndpoint(newEmptyBackend(), withDefaults(Options{Say: t.Logf, Warn: t.Logf}))
	hang, closed := make(chan struct{}), make(chan struct{})
	e.serve(stuckListener{l, hang})
	if _, err := dial.New(l.Addr().String()).Status(t.Context()); err != nil { // the server must use the new socket
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	go func() {
		defer close(closed)
		e.Close(ctx)
	}()
	select {
	case <-closed:
	case <-time.After(testkit.Patience):
		t.Error("the stop waits for the socket")
	}
	close(hang)
	<-closed
	_ = e.currentServer().http.Close() // returns after the listener is closed
}

// The FIFO and a new socket must work when the control socket can't be served again after a failed re-execution. Without a server,
// orders waited in the FIFO for ever.
func TestOrdersWaitedForEverWhenTheSocketWasLostInAReexecution(t *testing.T) {
	path, said := filepath.Join(socketDir(t), "s"), make(messageLog, 100)
	s := NewEndpoint(newEmptyBackend(), withDefaults(Options{OtherUsers: config.OthersMayDoNothing, Say: said.Say, Warn: said.Warn}))
	if err := s.Open(path); err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	left := s.CloseForReexec()
	if left == nil {
		t.Fatal("it cannot be left")
	}
	_ = left.File.Close() // the kernel gives no socket back
	testkit.Until(t, "the old socket closed", func() bool {
		c, err := net.Dial("unix", path)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	if err := os.WriteFile(filepath.Join(filepath.Dir(path), orderFIFOName), []byte("status\n"), 0); err != nil {
		t.Fatal(err)
	}
	s.Reattach(left)
	if got := said.next(t); !strings.Contains(got, "the control socket is lost") {
		t.Errorf("it warns %q", got)
	}
	if got := said.next(t); !strings.HasPrefix(got, "orders: status: hinit of the test") {
		t.Errorf("the FIFO says %q", got)
	}
	if st, err := dial.New(path).Status(t.Context()); err != nil || st.Init.Version != "of the test" {
		t.Errorf("the new socket answers %+v, %v", st.Init, err)
	}
	if again := s.CloseForReexec(); again == nil {
		t.Error("the next re-execution would lose the new socket")
	}
}
