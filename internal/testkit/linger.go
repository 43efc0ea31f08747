package testkit

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// LingeringSocket returns a TCP socket whose close would wait for a day, because its peer does not read. The end of the test does
// not wait for the close.
func LingeringSocket(t *testing.T) int {
	t.Helper()
	little := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2048) }), err)
	}}
	l, err := little.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096),
		unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetNonblock(fd, true),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 86_400}),
	); err != nil {
		t.Fatal(err)
	}
	for full := make([]byte, 64<<10); ; {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 500); n == 0 && err == nil {
			return fd
		}
		_, _ = unix.Write(fd, full) // ignore the error: the buffer may be full for a moment, and the next poll shows that
	}
}
