package probe

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
)

// maxResponseSize is the maximum number of bytes of a response that are read, including its headers.
const maxResponseSize = 64 << 10

// httpCheck sends one GET request over a new connection. It uses net/http to format the request and to parse the response, but
// not [http.Transport]. The transport would start goroutines, and its system calls would not take turns of package
// internal/blocking.
type httpCheck struct {
	to       []unix.Sockaddr
	request  []byte
	status   [][2]int
	expected string // the expected status as a text for people
	contains string
	matches  *regexp.Regexp
	timeout  time.Duration
}

func newHTTP(c config.Check, expand func(string) string) (*httpCheck, error) {
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
	if h.to, err = parseAddresses(host); err != nil {
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
		if value = lineBreaks.Replace(expand(value)); strings.EqualFold(name, "host") {
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

// lineBreaks replaces line breaks. Otherwise a header value from a file of the agent could add more headers.
var lineBreaks = strings.NewReplacer("\r", " ", "\n", " ")

var bufferedReaders = sync.Pool{New: func() any { return bufio.NewReader(nil) }}

func (h *httpCheck) check(deadline time.Time) (good bool, answer string) {
	c, err := dial(h.to, deadline, true)
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
		response, err := http.ReadResponse(r, nil) //nolint:bodyclose // a close of the body would read the rest; the connection is closed instead
		switch {
		case err != nil:
			return false, h.unreadReason(err, limited.N, !time.Now().Before(deadline))
		case response.StatusCode >= 200: // the final response; a 1xx response comes before another one
			return h.judgeResponse(response)
		}
	}
}

// unreadReason returns why a response could not be read completely. room is the number of bytes that were left below the limit
// maxResponseSize. late is true if the deadline has passed. The caller must pass late, because net/http does not report a
// deadline that passes in the middle of a line.
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

// maxSearches is how often a body is searched after each read. After that it is searched only when its length has doubled, and
// at its end.
const maxSearches = 64

// judgeResponse compares a response with the expected status and body.
func (h *httpCheck) judgeResponse(response *http.Response) (good bool, answer string) {
	code := response.StatusCode
	if !slices.ContainsFunc(h.status, func(r [2]int) bool { return r[0] <= code && code <= r[1] }) {
		return false, fmt.Sprintf("status %d, expected %s", code, h.expected)
	}
	answer = "status " + strconv.Itoa(code)
	if h.contains == "" && h.matches == nil {
		return true, answer
	}
	body, searched := []byte(nil), 0 // searched is the length at the last search
	for searches := 0; ; {
		if len(body) == cap(body) {
			body = slices.Grow(body, 4<<10)
		}
		n, err := response.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err == nil && searches > maxSearches && len(body) < 2*searched { // a body that comes byte by byte is searched less often
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

// missingText returns a message about an expected text that is not in the body, or "" if all expected texts are there.
func (h *httpCheck) missingText(body []byte) string {
	switch {
	case h.contains != "" && !bytes.Contains(body, []byte(h.contains)):
		return fmt.Sprintf("its body has no %q", h.contains)
	case h.matches != nil && !h.matches.Match(body):
		return fmt.Sprintf("its body does not match %q", h.matches)
	}
	return ""
}

// tcpCheck checks whether a port accepts connections. It sends nothing.
type tcpCheck struct {
	to      []unix.Sockaddr
	local   bool // the port is on the loopback interface
	timeout time.Duration
}

func (t *tcpCheck) check(deadline time.Time) (good bool, answer string) {
	good, answer, _ = t.connect(deadline)
	return good, answer
}

// connect makes the check. If the deadline is zero, connect does not wait, and over is false if it would have to.
func (t *tcpCheck) connect(deadline time.Time) (good bool, answer string, over bool) {
	if _, err := dial(t.to, deadline, false); err != nil {
		return false, shortError(err, t.timeout), !isPending(err)
	}
	return true, "it takes connections", true
}
