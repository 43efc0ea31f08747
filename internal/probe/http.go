package probe

import (
	"bytes"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/config"
)

const (
	// bodyMost is what is read of an answer at most, its headers included.
	bodyMost = 64 << 10
	// firstRead is room for the answer of most servers.
	firstRead = 4 << 10
)

// httpLook sends one GET over a connection of its own.
type httpLook struct {
	to       []unix.Sockaddr
	request  []byte
	status   [][2]int
	expected string // status, for people
	contains string
	matches  *regexp.Regexp
	timeout  time.Duration
}

func newHTTP(c config.Check, expand func(string) string) (*httpLook, error) {
	u, err := url.Parse(expand(c.HTTP.Target()))
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return nil, fmt.Errorf("%q is no http URL", expand(c.HTTP.Target()))
	}
	host := u.Host
	if u.Port() == "" {
		host += ":80"
	}
	h := &httpLook{expected: c.HTTP.Status, contains: c.HTTP.Contains, timeout: c.Timeout}
	if h.to, err = addresses(host); err != nil {
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
	headers := map[string]string{"Host": u.Host, "User-Agent": "hinit", "Accept": "*/*"}
	for name, value := range c.HTTP.Headers {
		for known := range headers {
			if strings.EqualFold(known, name) {
				delete(headers, known)
			}
		}
		headers[name] = oneLine.Replace(expand(value))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nConnection: close\r\n", u.RequestURI())
	for name, value := range headers {
		fmt.Fprintf(&b, "%s: %s\r\n", name, value)
	}
	h.request = []byte(b.String() + "\r\n")
	return h, nil
}

// oneLine keeps what comes from a file of the agent in its header.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, firstRead); return &b }}

func (h *httpLook) look(deadline time.Time) (good bool, answer string) {
	c, err := dial(h.to, deadline, toAsk)
	if err != nil {
		return false, say(err, h.timeout)
	}
	defer c.close()
	pooled := buffers.Get().(*[]byte)
	defer func() {
		if cap(*pooled) > firstRead { // few checks look at bodies
			*pooled = make([]byte, 0, firstRead)
		}
		buffers.Put(pooled)
	}()
	data := (*pooled)[:0]
	for first := true; ; first = false {
		if len(data) == cap(data) {
			if len(data) >= bodyMost {
				if good, answer, enough := h.judge(data, true); enough {
					return good, answer
				}
				return false, "its headers are longer than 64 KiB"
			}
			data = slices.Grow(data, min(len(data), bodyMost-len(data)))
		}
		read := c.read
		if first {
			read = func(buf []byte) (int, error) { return c.ask(h.request, buf) }
		}
		n, err := read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		*pooled = data[:0]
		over := err == nil && n == 0
		good, answer, enough := h.judge(data, over)
		switch {
		case enough:
			return good, answer
		case err != nil && len(data) == 0:
			return false, say(err, h.timeout)
		case err != nil:
			return false, "its answer is not complete: " + say(err, h.timeout)
		case over:
			return false, "it closed the connection before its answer was complete"
		}
	}
}

// judge judges what has come of an answer. enough reports that more would change nothing. over says that no more comes.
func (h *httpLook) judge(data []byte, over bool) (good bool, answer string, enough bool) {
	line, rest, whole := bytes.Cut(data, []byte("\n"))
	if !whole {
		if len(line) > 256 || over && len(line) > 0 || len(line) > 4 && !bytes.HasPrefix(line, []byte("HTTP")) {
			return false, "it does not speak HTTP: " + strconv.Quote(string(line[:min(len(line), 40)])), true
		}
		return false, "", false
	}
	code, ok := statusOf(line)
	if !ok {
		return false, "it does not speak HTTP: " + strconv.Quote(string(line[:min(len(line), 40)])), true
	}
	head, body, ended := cutHead(rest)
	if code < 200 { // one that another follows
		if !ended {
			return false, "", false
		}
		return h.judge(body, over)
	}
	if !slices.ContainsFunc(h.status, func(r [2]int) bool { return r[0] <= code && code <= r[1] }) {
		return false, fmt.Sprintf("status %d, expected %s", code, h.expected), true
	}
	answer = "status " + strconv.Itoa(code)
	if h.contains == "" && h.matches == nil {
		return true, answer, true
	}
	if !ended {
		return false, "", false
	}
	if bytes.Contains(bytes.ToLower(head), []byte("transfer-encoding: chunked")) {
		var last bool
		body, last = unchunk(body)
		over = over || last
	} else if length, known := lengthOf(head); known && len(body) >= length {
		over = true
	}
	switch {
	case h.contains != "" && !bytes.Contains(body, []byte(h.contains)):
		return false, fmt.Sprintf("its body has no %q", h.contains), over
	case h.matches != nil && !h.matches.Match(body):
		return false, fmt.Sprintf("its body does not match %q", h.matches), over
	}
	return true, answer, true
}

// cutHead cuts what follows a status line into headers and body.
func cutHead(rest []byte) (head, body []byte, ended bool) {
	for i := 0; i < len(rest); {
		line, _, whole := bytes.Cut(rest[i:], []byte("\n"))
		next := i + len(line) + 1
		switch {
		case !whole:
			return nil, nil, false
		case len(bytes.TrimRight(line, "\r")) == 0:
			return rest[:i], rest[next:], true
		}
		i = next
	}
	return nil, nil, false
}

// statusOf reads "HTTP/1.1 200 OK".
func statusOf(line []byte) (code int, ok bool) {
	version, rest, _ := bytes.Cut(line, []byte(" "))
	if !bytes.HasPrefix(version, []byte("HTTP/1.")) || len(rest) < 3 || len(rest) > 3 && rest[3] > ' ' {
		return 0, false
	}
	code, err := strconv.Atoi(string(rest[:3]))
	return code, err == nil && code >= 100
}

func lengthOf(head []byte) (length int, known bool) {
	for line := range bytes.SplitSeq(head, []byte("\n")) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(bytes.TrimSpace(name), []byte("content-length")) {
			length, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			return length, err == nil && length >= 0
		}
	}
	return 0, false
}

// unchunk returns what has come of a body in chunks, and whether its last chunk has.
func unchunk(data []byte) (body []byte, last bool) {
	for {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		size, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(";"))
		n, err := strconv.ParseUint(string(size), 16, 31)
		switch {
		case !ok:
			return body, false
		case err != nil || n == 0:
			return body, true
		case int(n) >= len(rest):
			return append(body, rest...), false
		}
		body = append(body, rest[:n]...)
		data = bytes.TrimPrefix(rest[n:], []byte("\r\n"))
	}
}

// tcpLook connects, and sends nothing.
type tcpLook struct {
	to      []unix.Sockaddr
	timeout time.Duration
}

func (t *tcpLook) look(deadline time.Time) (good bool, answer string) {
	if _, err := dial(t.to, deadline, toKnow); err != nil {
		return false, say(err, t.timeout)
	}
	return true, "it takes connections"
}
