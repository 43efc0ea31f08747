package quick

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// connectTime is how many seconds a connection may take. Only a full backlog makes it wait at all.
const connectTime = 2

// maxAnswer bounds an answer; the table of ten thousand services is smaller.
const maxAnswer = 4 << 20

// ask asks the init, prints what it says and returns the exit code. It returns false when hinit has to do it: nothing was printed
// then, and what was asked may be asked again.
func (o *options) ask(socket string, q question) (code int, ok bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if !connect(fd, socket) || !trusted(fd) {
		return 0, false
	}
	request := q.method + " " + q.path + " HTTP/1.1\r\nHost: hinit\r\nAccept: text/plain\r\nConnection: close\r\n" +
		"Content-Length: " + strconv.Itoa(len(q.body)) + "\r\n\r\n" + q.body
	if n, err := retried(func() (int, error) { return unix.Write(fd, []byte(request)) }); err != nil || n < len(request) {
		return 0, false // it is smaller than the buffer of a new socket
	}
	limit := o.answerTime
	if q.waits {
		limit = o.waitTime
	}
	text, late := receive(fd, now()+limit*1000)
	if late {
		return q.failed("hinit does not answer on "+strconv.Quote(socket), exitUnreachable), true
	}
	a, ok := parseAnswer(text)
	if !ok {
		return 0, false
	}
	return q.finish(a)
}

func connect(fd int, socket string) bool {
	limit := unix.Timeval{Sec: connectTime}
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit) != nil {
		return false
	}
	_, err := retried(func() (int, error) { return 0, unix.Connect(fd, &unix.SockaddrUnix{Name: socket}) })
	return err == nil
}

// trusted reports whether root or the caller listens. The directory was looked at by its name, and whoever can write one on the way to
// it can exchange it since.
func trusted(fd int) bool {
	who, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (who.Uid == 0 || int(who.Uid) == unix.Geteuid())
}

// now is a clock in milliseconds that nobody sets.
func now() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can't fail
	return t.Nano() / 1e6
}

// receive reads until the init closes the connection, which it does after its answer, but no longer than until the deadline, in the
// milliseconds of now. What is too long, or breaks off, is no answer.
func receive(fd int, deadline int64) (text string, late bool) {
	buf := make([]byte, 0, 8<<10)
	for len(buf) < maxAnswer {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		left := deadline - now()
		if left <= 0 {
			return "", true
		}
		limit := unix.NsecToTimeval(left * 1e6)
		if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit) != nil {
			return "", false
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == unix.EINTR, err == unix.EAGAIN: // the clock tells
		case err != nil:
			return "", false
		case n == 0:
			return string(buf), false
		default:
			buf = buf[:len(buf)+n]
		}
	}
	return "", false
}

// answer is what hinit has said.
type answer struct {
	status int
	kind   string // of the error, "" for none
	down   string // how many of the services in the table are not up
	body   string
}

// parseAnswer takes an answer of the control API apart (RFC 9112). It refuses all that is not a whole one in words.
func parseAnswer(text string) (a answer, ok bool) {
	head, body, ok := strings.Cut(text, "\r\n\r\n")
	if !ok {
		return answer{}, false
	}
	a.body = body
	line, fields, _ := strings.Cut(head, "\r\n")
	version, rest, _ := strings.Cut(line, " ")
	code, _, _ := strings.Cut(rest, " ")
	status, err := strconv.Atoi(code)
	if err != nil || version != "HTTP/1.1" {
		return answer{}, false
	}
	a.status = status
	length, words := -1, false
	for fields != "" {
		var field string
		field, fields, _ = strings.Cut(fields, "\r\n")
		name, value, _ := strings.Cut(field, ": ")
		switch name {
		case "Content-Length":
			if length, err = strconv.Atoi(value); err != nil {
				return answer{}, false
			}
		case "Content-Type":
			words = strings.HasPrefix(value, "text/plain")
		case "Hinit-Error":
			a.kind = value
		case "Hinit-Down":
			a.down = value
		}
	}
	return a, words && length == len(body)
}

// finish prints an answer and returns the exit code, or false for one that hinit has to see: an error after which it asks
// again, and what is no answer to this question.
func (q question) finish(a answer) (code int, ok bool) {
	switch {
	case a.kind == "busy", a.kind == "replaced", a.kind == "bad-request" && q.looks: // which an older init says to a look
		return 0, false
	case a.kind != "":
		return q.failed(a.body, exitCode(a.kind)), true
	case a.status != 200 && a.status != 202, q.method == "GET" && a.down == "":
		return 0, false
	}
	if _, err := os.Stdout.WriteString(a.body); err != nil && q.method == "GET" { // a command has done what it was to do
		return q.failed(err.Error(), exitFailed), true
	}
	if q.named && a.down != "0" {
		return exitNotUp, true
	}
	return exitDone, true
}

// failed prints the one line that says what did not work.
func (q question) failed(reason string, code int) int {
	_, _ = os.Stderr.WriteString("cannot " + q.doing + ": " + strings.ReplaceAll(reason, "\n", "; ") + "\n")
	return code
}

// exitCode is the exit code of each kind of error.
func exitCode(kind string) int {
	switch kind {
	case "unknown":
		return exitUnknown
	case "not-allowed":
		return exitNotAllowed
	}
	return exitFailed
}
