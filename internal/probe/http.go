package probe

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/config"
)

// maxResponseSize is the maximum number of bytes of a response, including its headers.
const maxResponseSize = 64 << 10

// httpCheck sends one GET request over a new connection. It formats the request and parses the response with net/http, but
// without [http.Transport]. An http.Transport starts goroutines, and package internal/blocking would not limit its system
// calls.
type httpCheck struct {
	addresses []unix.Sockaddr // addresses to try
	request   []byte
	status    [][2]int
	expected  string // expected status for the answer
	contains  string
	matches   *regexp.Regexp
	timeout   time.Duration
}

func newHTTPCheck(c config.Check, expand func(string) string) (*httpCheck, error) {
	target := expand(c.HTTP.Target())
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, target, nil)
	if err != nil || request.URL.Scheme != "http" || request.Host == "" {
		return nil, fmt.Errorf("%q is no http URL", target)
	}
	host := request.URL.Host
	if request.URL.Port() == "" {
		host += ":80"
	}
	h := &httpCheck{expected: c.HTTP.Status, contains: c.HTTP.Contains, timeout: c.Timeout}
	if h.addresses, err = parseAddresses(host); err != nil {
		return nil, err
	}
	if h.status, err = config.ParseStatus(c.HTTP.Status); err != nil {
		return nil, err
	}
	if c.HTTP.Matches != "" {
		if h.matches, err = regexp.Compile(c.HTTP.Matches); err != nil {
			return nil, err
		}
	}
	request.Close = true
	request.Header = http.Header{"User-Agent": {"hinit"}, "Accept": {"*/*"}}
	for name, value := range c.HTTP.Headers {
		value = lineBreaks.Replace(expand(value))
		if strings.EqualFold(name, "host") {
			request.Host = value
			continue
		}
		request.Header.Set(name, value)
	}
	var b bytes.Buffer
	err = request.Write(&b)
	h.request = b.Bytes()
	return h, err
}

// lineBreaks removes line breaks from header values. A value from a file of the agent could otherwise add headers.
var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

var bufferedReaders = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

func (h *httpCheck) check(deadline time.Time) (good bool, answer string) {
	c, err := dial(h.addresses, deadline, true)
	if err != nil {
		return false, shortError(err, h.timeout)
	}
	defer c.close()
	if err := c.write(h.request); err != nil {
		return false, shortError(err, h.timeout)
	}
	limited := &io.LimitedReader{R: c, N: maxResponseSize}
	r := bufferedReaders.Get().(*bufio.Reader)
	defer bufferedReaders.Put(r)
	r.Reset(limited)
	defer r.Reset(nil)
	for {
		response, err := http.ReadResponse(r, nil) //nolint:bodyclose // closing the body would read the rest, so the connection is closed instead
		switch {
		case err != nil:
			return false, h.unreadReason(err, limited.N, !time.Now().Before(deadline))
		case response.StatusCode >= 200: // a response with status 1xx precedes the final response
			return h.checkResponse(response)
		}
	}
}

// unreadReason says why the response could not be read to its end. room is the number of bytes left below maxResponseSize. late
// says whether the deadline has passed, because net/http does not report that in the middle of a line.
func (h *httpCheck) unreadReason(err error, room int64, late bool) string {
	if late {
		err = os.ErrDeadlineExceeded
	}
	_, broken := errors.AsType[unix.Errno](err)
	switch {
	case (late || broken) && room == maxResponseSize:
		return shortError(err, h.timeout)
	case late || broken:
		return "its answer is not complete: " + shortError(err, h.timeout)
	case room == 0:
		return "its headers are longer than 64 KiB"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it closed the connection before its answer was complete"
	}
	return "it does not speak HTTP: " + err.Error()
}

// maxSearches is how many times the check searches a body after each read. Later, it searches only when the length has doubled,
// and at the end. A server that sends single bytes could otherwise keep hinit busy.
const maxSearches = 64

// checkResponse compares the status and the body of a response with the settings of the check.
func (h *httpCheck) checkResponse(response *http.Response) (good bool, answer string) {
	code := response.StatusCode
	if !slices.ContainsFunc(h.status, func(r [2]int) bool { return r[0] <= code && code <= r[1] }) {
		return false, fmt.Sprintf("status %d, expected %s", code, h.expected)
	}
	answer = "status " + strconv.Itoa(code)
	if h.contains == "" && h.matches == nil {
		return true, answer
	}
	var body []byte
	searched, searches := 0, 0
	for {
		if len(body) == cap(body) {
			body = slices.Grow(body, 4<<10)
		}
		n, err := response.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		// the server may send single bytes, so search less often
		if err == nil && searches >= maxSearches && len(body) < 2*searched {
			continue
		}
		searched, searches = len(body), searches+1
		missing := h.missingText(body)
		switch {
		case missing == "":
			return true, answer
		case errors.Is(err, os.ErrDeadlineExceeded):
			return false, "its answer is not complete: " + shortError(err, h.timeout)
		case err != nil:
			return false, missing
		}
	}
}

// missingText says which expected text is not in the body; "" if none is missing.
func (h *httpCheck) missingText(body []byte) string {
	switch {
	case h.contains != "" && !bytes.Contains(body, []byte(h.contains)):
		return fmt.Sprintf("its body has no %q", h.contains)
	case h.matches != nil && !h.matches.Match(body):
		return fmt.Sprintf("its body does not match %q", h.matches)
	}
	return ""
}

// tcpCheck passes if a port accepts a connection. It sends nothing.
type tcpCheck struct {
	addresses  []unix.Sockaddr
	isLoopback bool // the port is on the loopback interface, so connecting never waits
	timeout    time.Duration
}

func (t *tcpCheck) check(deadline time.Time) (good bool, answer string) {
	good, answer, _ = t.connect(deadline)
	return good, answer
}

// connect makes the check. With a zero deadline it does not wait: over is false if the check needs to wait.
func (t *tcpCheck) connect(deadline time.Time) (good bool, answer string, over bool) {
	if _, err := dial(t.addresses, deadline, false); err != nil {
		return false, shortError(err, t.timeout), !isPending(err)
	}
	return true, "it takes connections", true
}

// conn is a connection with one deadline for all calls. Each system call takes a turn of package internal/blocking, because
// many checks may run at the same time.
type conn struct {
	file *os.File
	raw  syscall.RawConn
}

// runShortCall makes a system call that never waits, in one of the turns of blocking.Short.
func runShortCall(do func() error) error { return blocking.Do(blocking.ShortCalls, do) }

// parseAddresses parses an address such as "127.0.0.1:80". For localhost it returns the IPv4 and the IPv6 loopback address.
func parseAddresses(target string) ([]unix.Sockaddr, error) {
	host, port, _ := net.SplitHostPort(target)
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
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

// dial connects to the first address in to that accepts the connection. Unless keep is set, it closes the connection and
// returns nil. With a zero deadline it does not wait; if the connection needs more time, isPending(err) is true.
func dial(to []unix.Sockaddr, deadline time.Time, keep bool) (c *conn, err error) {
	for _, sa := range to {
		if c, err = dialOne(sa, deadline, keep, keep && len(to) == 1); err == nil || deadline.IsZero() && isPending(err) {
			break
		}
	}
	return c, err
}

// dialOne connects to one address. With writesFirst it returns before the connection is established, because a write then
// reports any error.
func dialOne(sa unix.Sockaddr, deadline time.Time, keep, writesFirst bool) (*conn, error) {
	fd, family := -1, unix.AF_INET
	if _, six := sa.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	err := runShortCall(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if keep { // let the request carry the last packet of the handshake, see tcp(7)
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0)
		}
		err = unix.Connect(fd, sa)
		if isPending(err) && !keep { // a connection on the same machine is usually established by now
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

// isPending reports whether connect(2) has returned before the connection was established.
func isPending(err error) bool {
	return errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY)
}

// newConn returns the socket fd as a conn. It closes the socket if it returns an error.
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

// awaitConnection blocks until the connection is established or has failed. It calls connect(2) again for the result.
func (c *conn) awaitConnection(sa unix.Sockaddr) (err error) {
	waitErr := c.raw.Write(func(fd uintptr) (done bool) {
		err = unix.Connect(int(fd), sa)
		return !isPending(err)
	})
	return cmp.Or(waitErr, err)
}

// mustRetry reports whether the system call that returned this error must be repeated.
func mustRetry(err error) bool { return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) }

func (c *conn) close() { _ = c.file.Close() }

func (c *conn) Read(buf []byte) (n int, err error) {
	waitErr := c.raw.Read(func(fd uintptr) bool {
		n, err = blocking.Get(blocking.ShortCalls, func() (int, error) { return unix.Read(int(fd), buf) })
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
	return cmp.Or(waitErr, err)
}

// shortError describes an error in a few words. The same error has the same words in each check.
func shortError(err error, timeout time.Duration) string {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return "no answer within " + timeout.String()
	}
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		switch errno { //nolint:exhaustive // for other errors, the text of the system is used
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
