package blocking_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/testkit"
)

// socketWithPassedFD returns a socket whose queue contains a passed descriptor: a TCP socket that lingers. The sender has closed
// its end.
func socketWithPassedFD(t *testing.T) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := testkit.LingeringSocket(t)
	if err := unix.Sendmsg(pair[1], []byte("G"), unix.UnixRights(fd), nil, 0); err != nil {
		t.Fatal(err)
	}
	unix.Close(fd) // the only other descriptor is in the queue
	unix.Close(pair[1])
	return pair[0]
}

// Calls of blocking.Peer must return although an agent has passed PID 1 a TCP socket that lingers, whose close waits. Otherwise
// status, logs and healthcheck would hang for all users.
func TestASocketThatLingersHoldsUpNobodyWhoIsPassedIt(t *testing.T) {
	done := make(chan error, 2)
	go func() {
		fd := socketWithPassedFD(t)
		done <- blocking.DoWithPeer(func() error {
			_, err := unix.Read(fd, make([]byte, 8))
			return err
		})
		unread := socketWithPassedFD(t)
		blocking.DrainSocket(uintptr(unread))
		done <- unix.Close(unread)
	}()
	for range cap(done) {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testkit.Patience):
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
