package probe

import (
	"cmp"
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

// dial connects to the first address in to that accepts the connection. Without keep, dial only tests whether an address accepts
// connections, and returns no connection. If the deadline is zero, dial does not wait, and isPending reports whether it would have
// to.
func dial(to []unix.Sockaddr, deadline time.Time, keep bool) (c *conn, err error) {
	for _, sa := range to {
		if c, err = dialOne(sa, deadline, keep, keep && len(to) == 1); err == nil || deadline.IsZero() && isPending(err) {
			break
		}
	}
	return c, err
}

// dialOne connects to one address. With writesFirst, it need not wait until the connection is established: writing then reports
// any error of the connection.
func dialOne(sa unix.Sockaddr, deadline time.Time, keep, writesFirst bool) (*conn, error) {
	fd, family := -1, unix.AF_INET
	if _, six := sa.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	err := runShortCall(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if keep { // with this option off, the request carries the last packet of the handshake, see tcp(7)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
		}
		err = unix.Connect(fd, sa)
		if isPending(err) && !keep { // on the same machine, the connection is usually established now
			err = unix.Connect(fd, sa)
		}
		if err == nil && keep || isPending(err) && !deadline.IsZero() {
			return err
		}
		unix.Close(fd)
		return err
	})
	if err == nil && !keep || err != nil && (!isPending(err) || deadline.IsZero()) {
		return nil, err
	}
	c, openErr := newConn(fd, deadline)
	if openErr != nil || err == nil || writesFirst {
		return c, openErr
	}
	if err = c.awaitConnection(sa); err != nil || !keep {
		c.close()
	}
	return c, err
}

// isPending reports whether connect(2) has returned an error because the connection is not established yet.
func isPending(err error) bool {
	return errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY)
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

// awaitConnection waits until the connection is established, or has failed. connect(2) tells which.
func (c *conn) awaitConnection(sa unix.Sockaddr) (err error) {
	waitErr := c.raw.Write(func(fd uintptr) (done bool) {
		err = unix.Connect(int(fd), sa)
		return !isPending(err)
	})
	return cmp.Or(waitErr, err)
}

// mustRetry reports whether a system call that failed with the given error must be repeated.
func mustRetry(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

func (c *conn) close() { _ = c.file.Close() }

// Read implements [io.Reader].
func (c *conn) Read(buf []byte) (n int, err error) {
	waitErr := c.raw.Read(func(fd uintptr) bool {
		err = runShortCall(func() (err error) {
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
