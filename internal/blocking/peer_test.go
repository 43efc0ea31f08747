package blocking_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// lingering returns a TCP socket whose close waits for a day: its peer does not read.
func lingering(t *testing.T) int {
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
		_, _ = unix.Write(fd, full) // it may be full for a moment

	}
}

// passing returns a socket on which a descriptor that lingers has been sent, and whose sender is gone.
func passing(t *testing.T) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := lingering(t)
	if err := unix.Sendmsg(pair[1], []byte("G"), unix.UnixRights(fd), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd) // the last one is in the socket
	unix.Close(pair[1])
	return pair[0]
}

// An agent passed PID 1 a socket that lingers, and status, logs and healthcheck of everybody hung.
func TestASocketThatLingersHoldsUpNobodyWhoIsPassedIt(t *testing.T) {
	done := make(chan error, 2)
	go func() {
		fd := passing(t)
		done <- blocking.Peer(func() error {
			_, err := unix.Read(fd, make([]byte, 8))
			return err
		})
		unread := passing(t)
		blocking.Drain(uintptr(unread))
		done <- unix.Close(unread)
	}()
	for range cap(done) {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the call waits for the socket that was passed")
		}
	}
}

func TestDescriptorsAreRefusedWhereTheKernelCan(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	if _, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, 83); err != nil {
		t.Skip("this kernel takes any descriptor: ", err)
	}
	blocking.RefuseDescriptors(uintptr(pair[0]))
	if err := unix.Sendmsg(pair[1], []byte("G"), unix.UnixRights(int(os.Stdin.Fd())), nil, 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("a descriptor is taken: %v", err)
	}
}
