package notify_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"hinit/internal/notify"
	"hinit/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// receivedMessage is a message with its service and the PID of its sender.
type receivedMessage struct {
	service string
	pid     int
	notify.Message
}

// newHub returns a hub, and a channel that gets its messages.
func newHub(t *testing.T) (*notify.Hub, chan receivedMessage) {
	t.Helper()
	received := make(chan receivedMessage, 10_000)
	return notify.New(func(service string, pid int, m notify.Message) { received <- receivedMessage{service, pid, m} }), received
}

func nextMessage(t *testing.T, received chan receivedMessage) receivedMessage {
	t.Helper()
	select {
	case s := <-received:
		return s
	case <-time.After(testkit.Patience):
		t.Fatal("nothing was heard")
		return receivedMessage{}
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "n") //nolint:usetesting // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func listen(t *testing.T, h *notify.Hub, dir, service string) string {
	t.Helper()
	path, err := h.Listen(dir, service, uint32(os.Geteuid()), uint32(os.Getegid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.CloseSocket(service) })
	return path
}

func send(t *testing.T, path, text string, rights ...int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(fd, []byte(text), unix.UnixRights(rights...), &unix.SockaddrUnix{Name: path}, 0); err != nil {
		t.Fatal(err)
	}
}

func TestWhatIsSentIsHeardWithItsSender(t *testing.T) {
	h, received := newHub(t)
	dir := shortDir(t)
	a, b := listen(t, h, dir, "a"), listen(t, h, dir, "b")
	send(t, a, "READY=1")
	if got := nextMessage(t, received); got.service != "a" || got.pid != os.Getpid() || !got.Ready {
		t.Errorf("%+v", got)
	}
	// Malformed fields and too long values are ignored.
	send(t, b, "\x00\xff\n=\n")
	send(t, b, "READY=1\nSTATUS="+strings.Repeat("x", 64<<10))
	send(t, b, strings.Repeat("x", notify.MaxMessage+1))
	send(t, b, "")
	send(t, b, "STATUS="+strings.Repeat("x", notify.MaxMessage-len("STATUS=")))
	if got := nextMessage(t, received); got.service != "b" || got.Ready || len(got.Status) != 256 {
		t.Errorf("%+v", got)
	}
	if info, err := os.Stat(a); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// A descriptor in a datagram must be closed when the earlier datagrams have been handled. This process must never install it.
func TestDescriptorsAreNotTaken(t *testing.T) {
	taken, goOn := make(chan notify.Message), make(chan struct{})
	h := notify.New(func(_ string, _ int, m notify.Message) {
		taken <- m
		<-goOn
	})
	path := listen(t, h, shortDir(t), "a")
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	send(t, path, "READY=1")
	send(t, path, "BARRIER=1", p[1], p[1], p[1])
	unix.Close(p[1])
	if m := <-taken; !m.Ready {
		t.Errorf("%+v", m)
	}
	buf := make([]byte, 1)
	if n, err := unix.Read(p[0], buf); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the barrier is through before what was sent before it: %d, %v", n, err)
	}
	close(goOn)
	testkit.Until(t, "closed descriptors", func() bool {
		n, err := unix.Read(p[0], buf)
		return n == 0 && err == nil
	})
}

// A process that sends without pause must be slowed down, and none of its messages may be lost.
func TestAFloodHoldsUpWhoSendsIt(t *testing.T) {
	h, received := newHub(t)
	path := listen(t, h, shortDir(t), "a")
	const many = 300
	begin := time.Now()
	for range many {
		send(t, path, "STATUS=again")
	}
	if took := time.Since(begin); took < 500*time.Millisecond { // the hub reads 64 messages each 250 ms
		t.Errorf("nobody held it up: %d were sent within %v", many, took)
	}
	for range many {
		nextMessage(t, received)
	}
}

// A datagram that was not handled completely must reach the handler of the re-executed hinit.
func TestNothingIsLostBetweenImages(t *testing.T) {
	stuck, begun := make(chan struct{}), make(chan notify.Message, 10)
	old := notify.New(func(_ string, _ int, m notify.Message) {
		begun <- m
		<-stuck
	})
	dir := shortDir(t)
	path := listen(t, old, dir, "a")
	send(t, path, "READY=1")
	send(t, path, "STATUS=second")
	if m := <-begun; !m.Ready {
		t.Errorf("%+v", m)
	}
	handed := old.HandOver()
	// Only the descriptor remains, as after execve(2).
	fd, err := unix.FcntlInt(handed.Sockets["a"].File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	handed.Sockets["a"].File = os.NewFile(uintptr(fd), path)
	h, received := newHub(t)
	h.TakeOver(handed)
	defer h.CloseSocket("a")
	if got := nextMessage(t, received); !got.Ready {
		t.Errorf("%+v", got)
	}
	if got := nextMessage(t, received); got.Status != "second" {
		t.Errorf("%+v", got)
	}
	if again, err := h.Listen(dir, "a", uint32(os.Geteuid()), uint32(os.Getegid())); err != nil || again != path {
		t.Errorf("%q, %v", again, err)
	}
	close(stuck)
	h.TakeOver(nil)
	h.TakeOver(notify.New(nil).HandOver()) // take over from a program that had no sockets
}

func TestWhoMayWrite(t *testing.T) {
	h, received := newHub(t)
	dir := shortDir(t)
	if os.Geteuid() != 0 {
		t.Skip("only root can give a socket away")
	}
	path, err := h.Listen(dir, "a", 4242, 4242)
	if err != nil {
		t.Fatal(err)
	}
	defer h.CloseSocket("a")
	if sendAs(t, 4243, path) == nil {
		t.Error("another user can write to it")
	}
	if err := sendAs(t, 4242, path); err != nil {
		t.Error(err)
	}
	nextMessage(t, received)
	// After a change of the service's user, the service gets another socket.
	if path, err = h.Listen(dir, "a", 4243, 4243); err != nil {
		t.Fatal(err)
	}
	if sendAs(t, 4242, path) == nil {
		t.Error("its last user can write to it")
	}
}

// sendAs sends a message with the file system uid of a user.
func sendAs(t *testing.T, uid uint32, path string) (err error) {
	t.Helper()
	done := make(chan error)
	go func() {
		// setfsuid(2) changes only this thread, which stays locked and ends with the goroutine.
		lockThread()
		if err := setFSUser(uid); err != nil {
			done <- err
			return
		}
		done <- notify.Send(path, "READY=1")
	}()
	return <-done
}

func TestNoPlaceForASocket(t *testing.T) {
	h, _ := newHub(t)
	dir := shortDir(t)
	if _, err := h.Listen(dir, strings.Repeat("x", 100), 0, 0); err == nil || !strings.Contains(err.Error(), "HINIT_RUNTIME_DIR") {
		t.Error(err)
	}
	if _, err := h.Listen(filepath.Join(dir, "none"), "a", 0, 0); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := os.Symlink("/", filepath.Join(dir, "notify")); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Listen(dir, "a", 0, 0); !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
		t.Error(err)
	}
	if err := notify.Send("relative", "READY=1"); err == nil {
		t.Error("there is a socket at a relative path")
	}
}
