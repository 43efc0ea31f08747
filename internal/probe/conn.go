package probe

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
)

// conn is a connection on which all calls end at a deadline. Each system call waits for its turn in package internal/blocking,
// because many checks may run at the same time.
type conn struct {
	file *os.File
	raw  syscall.RawConn
}

// runShortCall makes a system call that never waits, in a turn of blocking.Short.
func runShortCall(do func() error) error { return blocking.Do(blocking.Short, do) }

// parseAddresses parses an address like "127.0.0.1:80". For the host localhost, it returns the IPv4 and IPv6 loopback addresses.
func parseAddresses(target string) ([]unix.Sockaddr, error) {
	host, port, ok := cutPort(target)
	n, err := strconv.ParseUint(port, 10, 16)
	if !ok || err != nil || n == 0 {
		return nil, fmt.Errorf("%q has no port from 1 to 65535", target)
	}
	if host == "localhost" {
		return []unix.Sockaddr{&unix.SockaddrInet4{Port: int(n), Addr: [4]byte{127, 0, 0, 1}}, &unix.SockaddrInet6{Port: int(n), Addr: netip.IPv6Loopback().As16()}}, nil
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err != nil || ip.Zone() != "":
		return nil, fmt.Errorf("%q is no IP address", host)
	case ip.Is4() || ip.Is4In6():
		return []unix.Sockaddr{&unix.SockaddrInet4{Port: int(n), Addr: ip.Unmap().As4()}}, nil
	}
	return []unix.Sockaddr{&unix.SockaddrInet6{Port: int(n), Addr: ip.As16()}}, nil
}

func cutPort(target string) (host, port string, ok bool) {
	i := strings.LastIndexByte(target, ':')
	if i < 0 {
		return target, "", false
	}
	return strings.Trim(target[:i], "[]"), target[i+1:], true
}

// dialPurpose is the caller's use of a connection. It decides how long dial waits.
type dialPurpose int

const (
	acceptsOnly dialPurpose = iota // the caller only tests whether the port accepts connections; dial returns no connection
	established                    // dial waits until the connection is established
	writesFirst                    // the caller writes first, so dial need not wait; writing then reports any error of the connection
)

// dial connects to the first address in to that accepts the connection. The argument what is the caller's use of the connection.
func dial(to []unix.Sockaddr, deadline time.Time, what dialPurpose) (c *conn, err error) {
	if what == writesFirst && len(to) > 1 { // dial must learn about an error, to try the next address
		what = established
	}
	for _, sa := range to {
		family := unix.AF_INET
		if _, six := sa.(*unix.SockaddrInet6); six {
			family = unix.AF_INET6
		}
		if c, err = dialOne(family, sa, deadline, what); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func dialOne(family int, sa unix.Sockaddr, deadline time.Time, what dialPurpose) (*conn, error) {
	fd, keep := -1, what != acceptsOnly
	err := runShortCall(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		blocking.RefuseDescriptors(uintptr(fd))
		if keep { // with this option off, the request carries the last packet of the handshake, see tcp(7)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
		}
		err = unix.Connect(fd, sa)
		if errors.Is(err, unix.EINPROGRESS) && !keep { // on the same machine, the connection is usually established immediately
			if done, wrong := isConnected(fd); done {
				err = wrong
			}
		}
		if err == nil && keep || errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		unix.Close(fd)
		return err
	})
	switch {
	case err == nil && !keep:
		return nil, nil
	case err != nil && !errors.Is(err, unix.EINPROGRESS):
		return nil, err
	}
	c, openErr := newConn(fd, deadline)
	if openErr != nil || err == nil || what == writesFirst {
		return c, openErr
	}
	if err := c.awaitConnection(); err != nil {
		c.close()
		return nil, err
	}
	if !keep {
		c.close()
	}
	return c, nil
}

// newConn makes a conn from the socket fd. After an error the socket is closed.
func newConn(fd int, deadline time.Time) (*conn, error) {
	f := os.NewFile(uintptr(fd), "check")
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetDeadline(deadline)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &conn{f, raw}, nil
}

// awaitConnection waits until the connection is established, or has failed.
func (c *conn) awaitConnection() (err error) {
	waitErr := c.raw.Write(func(fd uintptr) (done bool) {
		done, err = isConnected(int(fd))
		return done
	})
	if waitErr != nil {
		return waitErr
	}
	return err
}

// isConnected reports whether the connection attempt is over. If it has failed, err says why.
func isConnected(fd int) (done bool, err error) {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return true, err
	case errno != 0:
		return true, unix.Errno(errno)
	}
	_, err = unix.Getpeername(fd) // fails before the connection is established
	return err == nil, nil
}

// mustRetry reports whether a system call that failed with the given error must be repeated.
func mustRetry(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

func (c *conn) close() {
	_ = c.raw.Control(blocking.Drain) // fails if the connection is already closed
	_ = c.file.Close()
}

// Read implements [io.Reader].
func (c *conn) Read(buf []byte) (n int, err error) {
	waitErr := c.raw.Read(func(fd uintptr) bool {
		err = blocking.Peer(func() (err error) {
			n, err = unix.Read(int(fd), buf)
			return err
		})
		return !mustRetry(err)
	})
	switch {
	case waitErr != nil:
		return 0, waitErr
	case err == nil && n == 0 && len(buf) > 0:
		return 0, io.EOF
	}
	return max(n, 0), err
}

func (c *conn) write(data []byte) error {
	var err error
	waitErr := c.raw.Write(func(fd uintptr) bool {
		err = runShortCall(func() error {
			n, err := unix.SendmsgN(int(fd), data, nil, nil, unix.MSG_NOSIGNAL)
			data = data[max(n, 0):]
			return err
		})
		return err != nil && !mustRetry(err) || len(data) == 0
	})
	if waitErr != nil {
		return waitErr
	}
	return err
}

// shortError describes an error in a few words. Equal errors have equal descriptions.
func shortError(err error, timeout time.Duration) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "no answer within " + timeout.String()
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		switch errno { //nolint:exhaustive // the other errors have their own words
		case unix.ECONNREFUSED:
			return "connection refused"
		case unix.EAGAIN:
			return "its queue of connections is full"
		case unix.ECONNRESET, unix.EPIPE:
			return "it closed the connection"
		}
		return errno.Error()
	}
	return err.Error()
}
