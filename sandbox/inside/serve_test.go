package inside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/proc"
	"hinit/sandbox/mux"
)

// testServer returns the helper, which runs in the test process. All tests share it, because only one
// loop can reap a process's children.
var testServer = sync.OnceValue(func() *server {
	l, err := newProcessLoop()
	if err != nil {
		panic(err)
	}
	s := &server{id: "box", loop: l, env: os.Environ()}
	s.startTicks, _ = proc.StartTicks(os.Getpid())
	s.jobs = &jobs{server: s}
	go l.serve()
	return s
})

// dialTest connects to the helper's socket.
func dialTest(t testing.TB) net.Conn {
	t.Helper()
	s := testServer()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	go s.serve(far)
	t.Cleanup(func() { near.Close() })
	return near
}

func dialClient(t *testing.T) *mux.Client {
	t.Helper()
	c, err := mux.NewClient(dialTest(t), "box")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// runCommand runs a command and returns its end and its output.
func runCommand(t *testing.T, c *mux.Client, open mux.Open) (mux.End, string) {
	t.Helper()
	open.Op = mux.OpRun
	st, err := c.Open(open)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, _ = io.Copy(&out, st.Output)
	<-st.Done()
	end, err := st.End()
	if err != nil {
		t.Fatal(err)
	}
	return end, out.String()
}

func retryUntilNil(t *testing.T, ask func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestRun(t *testing.T) {
	c := dialClient(t)
	if _, err := mux.NewClient(dialTest(t), "other"); err == nil {
		t.Error("the helper of another container is taken for the right one")
	}
	if end, out := runCommand(t, c, mux.Open{Argv: []string{"sh", "-c", "echo $A; exit 3"}, Env: map[string]string{"A": "b"}}); end.Code != 3 || out != "b\n" {
		t.Errorf("%+v, %q", end, out)
	}
	for what, open := range map[string]mux.Open{
		"no command": {}, "negative": {Argv: []string{"true"}, Timeout: -1}, "session": {Command: "true", Session: "../x"},
		"name": {Command: "true", Session: "x", Env: map[string]string{"a;b": ""}},
	} {
		if end, _ := runCommand(t, c, open); end.Fault != mux.Refused {
			t.Errorf("%s: %+v", what, end)
		}
	}
	if end, _ := runCommand(t, c, mux.Open{Argv: []string{"/no/such"}}); end.Fault != mux.NotBegun || end.Code != 127 {
		t.Errorf("%+v", end)
	}
	if end, _ := runCommand(t, c, mux.Open{Argv: []string{"true"}, Dir: "/no/such"}); end.Fault != mux.NotBegun || !strings.Contains(end.Text, "/no/such") {
		t.Errorf("%+v", end)
	}
	if end, _ := runCommand(t, c, mux.Open{Argv: []string{"sleep", "100"}, Timeout: 50, Grace: 50}); !end.TimedOut || end.Signal != 15 {
		t.Errorf("%+v", end)
	}
}

// TestHostileClients checks that a client that sends invalid frames loses only its own connection.
func TestHostileClients(t *testing.T) {
	good := dialClient(t)
	for name, send := range map[string]func(w *mux.Writer, conn net.Conn){
		"no hello":                func(w *mux.Writer, _ net.Conn) { _ = w.Write(mux.KindPing, 0, nil) },
		"garbage":                 func(_ *mux.Writer, conn net.Conn) { _, _ = conn.Write(bytes.Repeat([]byte{255}, 100)) },
		"another version":         func(w *mux.Writer, _ net.Conn) { _ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: 9}) },
		"an open that is no JSON": afterHello(func(w *mux.Writer, _ net.Conn) { _ = w.Write(mux.KindOpen, 1, []byte("[")) }),
		"a channel twice": afterHello(func(w *mux.Writer, _ net.Conn) {
			for range 2 {
				_ = w.WriteJSON(mux.KindOpen, 1, mux.Open{Op: mux.OpRun, Argv: []string{"sleep", "98001"}})
			}
		}),
		"more input than there is room for": afterHello(func(w *mux.Writer, _ net.Conn) {
			_ = w.WriteJSON(mux.KindOpen, 1, mux.Open{Op: mux.OpRun, Argv: []string{"sleep", "98001"}, Input: true})
			for range mux.StreamWindow/mux.MaxData + 10 {
				if w.Write(mux.KindInput, 1, make([]byte, mux.MaxData)) != nil {
					return
				}
			}
		}),
		"more room than a window": afterHello(func(w *mux.Writer, _ net.Conn) {
			_ = w.WriteJSON(mux.KindOpen, 1, mux.Open{Op: mux.OpRun, Argv: []string{"sleep", "98001"}})
			_ = w.Write(mux.KindConfirm, 1, []byte{byte(mux.KindOutput)})
		}),
		"a signal that is none": afterHello(func(w *mux.Writer, _ net.Conn) {
			_ = w.WriteJSON(mux.KindOpen, 1, mux.Open{Op: mux.OpRun, Argv: []string{"sleep", "98001"}})
			_ = w.Write(mux.KindPong, 1, mux.EncodeNumber(65))
		}),
		"a frame of the other side": afterHello(func(w *mux.Writer, _ net.Conn) {
			_ = w.WriteJSON(mux.KindOpen, 1, mux.Open{Op: mux.OpRun, Argv: []string{"sleep", "98001"}})
			_ = w.Write(mux.KindOutput, 1, nil)
		}),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialTest(t)
			go send(mux.NewWriter(conn), conn)
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			for r := mux.NewReader(conn); ; {
				if _, err := r.Next(); err != nil {
					if errors.Is(err, os.ErrDeadlineExceeded) {
						t.Error("the connection is still open")
					}
					break
				}
			}
		})
	}
	retryUntilNil(t, func() error { return noSleepProcess("98001") })
	if end, out := runCommand(t, good, mux.Open{Argv: []string{"echo", "still here"}}); end.Code != 0 || out != "still here\n" {
		t.Errorf("%+v, %q", end, out)
	}
}

func afterHello(send func(*mux.Writer, net.Conn)) func(*mux.Writer, net.Conn) {
	return func(w *mux.Writer, conn net.Conn) {
		_ = w.WriteJSON(mux.KindHello, 0, mux.Hello{Version: mux.Version})
		send(w, conn)
	}
}

// noSleepProcess returns an error if a sleep process with this argument exists.
func noSleepProcess(word string) error {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(line, []byte("sleep\x00"+word)) {
			return fmt.Errorf("%s runs: %q", e.Name(), line)
		}
	}
	return nil
}

// TestClientLeaves checks that a client's foreground command ends when the client disconnects.
// Background commands and leftover processes must continue.
func TestClientLeaves(t *testing.T) {
	c := dialClient(t)
	if end, _ := runCommand(t, c, mux.Open{Argv: []string{"sh", "-c", "sleep 98002 >/dev/null 2>&1 &"}}); end.Code != 0 {
		t.Fatal(end)
	}
	job, err := c.Open(mux.Open{Op: mux.OpStart, Argv: []string{"sleep", "98003"}})
	if err != nil {
		t.Fatal(err)
	}
	<-job.Done()
	end, err := job.End()
	if err != nil || len(end.Jobs) != 1 {
		t.Fatal(end, err)
	}
	st, err := c.Open(mux.Open{Op: mux.OpRun, Argv: []string{"sh", "-c", "trap '' TERM; sleep 98004 & wait; wait"}, Grace: 20})
	if err != nil {
		t.Fatal(err)
	}
	<-st.Begun()
	retryUntilNil(t, func() error {
		if noSleepProcess("98004") == nil {
			return errors.New("it has not begun")
		}
		return nil
	})
	c.Close()
	retryUntilNil(t, func() error { return noSleepProcess("98004") })
	if noSleepProcess("98002") == nil || noSleepProcess("98003") == nil {
		t.Error("a process that must keep running has ended")
	}
	c = dialClient(t)
	kill, err := c.Open(mux.Open{Op: mux.OpKill, Job: end.Jobs[0].ID, Grace: 1000})
	if err != nil {
		t.Fatal(err)
	}
	<-kill.Done()
	if end, err := kill.End(); err != nil || len(end.Jobs) != 1 || end.Jobs[0].Running {
		t.Error(end, err)
	}
	if err := noSleepProcess("98003"); err != nil {
		t.Error(err)
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries { // The loop kills the processes that this test has left behind.
		if line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline"); bytes.Equal(line, []byte("sleep\x0098002\x00")) {
			var pid int
			_, _ = fmt.Sscan(e.Name(), &pid)
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func TestRing(t *testing.T) {
	r := &outputRing{written: make(chan struct{})}
	for i := range 100_000 {
		fmt.Fprintf(r, "%06d\n", i)
	}
	written, dropped := r.size()
	if written != 700_000 || dropped < 400_000 || written-dropped < maxJobOutput {
		t.Error(written, dropped)
	}
	data, next, _ := r.read(0)
	if next != dropped+int64(len(data)) || len(data) == 0 || len(data) > mux.MaxData {
		t.Error(len(data), next)
	}
	last, _, _ := r.read(written - 7)
	if string(last) != "099999\n" {
		t.Errorf("%q", last)
	}
	data, next, grown := r.read(written)
	if len(data) > 0 || next != written {
		t.Error("there is more than was written")
	}
	fmt.Fprint(r, "x")
	<-grown
	r.close()
	if data, _, grown := r.read(written); string(data) != "x" || grown != nil {
		t.Errorf("%q after the end, and more to come: %v", data, grown != nil)
	}
}

// TestAnotherUserOfTheContainer checks that another user in the container can't run commands as
// this user.
func TestAnotherUserOfTheContainer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	dir, err := os.MkdirTemp("", "hinit-inside-") //nolint:usetesting // another user must be able to enter this directory
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := listenIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for uid, want := range map[uintptr]bool{0: true, 12345: false} {
		dialled := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // The thread ends with the goroutine, so its user need not be restored.
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uid, ^uintptr(0)); errno != 0 {
				dialled <- errno
				return
			}
			c, err := net.Dial("unix", l.Addr().String())
			if err == nil {
				defer c.Close()
			}
			dialled <- err
		}()
		if err := <-dialled; err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := mayRunCommands(c); got != want {
			t.Errorf("user %d is allowed: %v", uid, got)
		}
		c.Close()
	}
}

func TestPrivateDirTrustsNobodyElse(t *testing.T) {
	dir := t.TempDir()
	open, link := filepath.Join(dir, "open"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Symlink(open, link)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{open, link, filepath.Join(dir, "no", "parent")} {
		if privateDir(bad) == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	if err := errors.Join(privateDir(dir+"/new"), privateDir(dir+"/new")); err != nil {
		t.Error(err)
	}
}
