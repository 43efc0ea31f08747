//go:build linux && (amd64 || arm64)

package entry

import (
	"syscall"
	"unsafe"
)

// hinit's command line and the tools of s6 have the same exit codes (docs/reference/exit-codes.md).
const (
	exitFailed      = 1
	exitNotUp       = 3
	exitUnreachable = 4
	exitNotAllowed  = 5
	exitUnknown     = 6
	exitSystem      = 111
)

// runtimeDir is the directory of the control socket.
var runtimeDir = "/run/hinit"

// answerTime limits how many seconds an answer may take. PID 1 waits 40 seconds for a stop.
const answerTime = 50

// text is a buffer of fixed size. Text that does not fit is cut off.
type text struct {
	buf [8 << 10]byte
	n   int
}

func (t *text) add(s string) *text {
	t.n += copy(t.buf[t.n:], s)
	return t
}

func (t *text) num(n int) *text {
	if n >= 10 {
		t.num(n / 10)
	}
	t.n += copy(t.buf[t.n:], "0123456789"[n%10:n%10+1])
	return t
}

func (t *text) string() string { return unsafe.String(&t.buf[0], t.n) }

// The buffers are static: there is no heap, and the stack can't grow.
var (
	request, path, line text
	answer              [256 << 10]byte // a longer answer is cut off
)

// question is a request to PID 1.
type question struct {
	doing                       string // verb for messages, after "cannot" and before the name
	method, before, name, after string // before, name and after together are the target of the request
	body                        string
	named, health               bool
}

// run asks PID 1 for what the words say, and returns the exit code. Where hinit-tools is missing it returns less than 0 for what needs
// hinit-tools, and where PID 1 can't be reached: the program behind the runtime says so.
func run(name string, argv, env words, missing bool) int {
	failed := exitFailed
	if name != "hinit" {
		failed = exitSystem
	}
	if dir := env.get("HINIT_RUNTIME_DIR"); dir != "" {
		runtimeDir = dir
	}
	q, ok := parse(name, argv)
	if !ok && missing {
		return -1
	}
	if !ok {
		return refuse(name, argv, "", failed)
	}
	fd := dial()
	if fd < 0 && missing {
		return -1
	}
	if fd < 0 {
		if name == "hinit" {
			failed = exitUnreachable
		}
		return refuse(name, argv, ", and hinit cannot be reached on its socket", failed)
	}
	request.add(q.method).add(" ").add(q.before).add(q.name).add(q.after)
	request.add(" HTTP/1.1\r\nHost: hinit\r\nAccept: text/plain\r\nConnection: close\r\nContent-Length: ").num(len(q.body)).add("\r\n\r\n").add(q.body)
	if write(fd, request.string()) != request.n {
		return refuse(name, argv, ", and hinit does not take the request", failed)
	}
	n := 0
	for n < len(answer) {
		m := syscall3(syscall.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&answer[n])), uintptr(len(answer)-n))
		if m == -int(syscall.EINTR) {
			continue
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return finish(q, unsafe.String(&answer[0], n), failed)
}

// parse converts a command line to a request. It knows the commands that help when no process can be started.
func parse(name string, argv words) (q question, ok bool) {
	if name == "s6-svc" {
		// Only letters that don't wait, and an absolute path.
		flags, dir := argv.at(1), argv.at(2)
		if argv.n != 3 || len(flags) < 2 || flags[0] != '-' || !isPlainWord(flags[1:], "") || flags[1] == 'w' || flags[1] == 'T' || flags[1] == 's' ||
			dir == "" || dir[0] != '/' || !isPlainWord(dir, "/") {
			return question{}, false
		}
		body.add(`{"dir":"`).add(dir).add(`","flags":"`).add(flags[1:]).add(`"}`)
		return question{doing: "control the slot", method: "POST", before: "/v1/slots/control", body: body.string()}, true
	}
	if name != "hinit" {
		return question{}, false
	}
	switch verb := argv.at(1); verb {
	case "stop", "start", "restart":
		b := `{"wait":true}`
		if argv.n == 4 && argv.at(3) == "--no-wait" {
			b = `{"wait":false}`
		} else if argv.n != 3 {
			return question{}, false
		}
		if !isPlainWord(argv.at(2), "") {
			return question{}, false
		}
		body.add("/").add(verb)
		return question{doing: verb, method: "POST", before: "/v1/services/", name: argv.at(2), after: body.string(), body: b}, true
	case "status":
		for i := 2; i < argv.n; i++ {
			if !isPlainWord(argv.at(i), "") {
				return question{}, false
			}
			body.add("&name=").add(argv.at(i))
		}
		return question{doing: "show the status", method: "GET", before: "/v1/status?as=table", after: body.string(), named: argv.n > 2}, true
	case "healthcheck":
		q := question{doing: "check the health", method: "GET", before: "/v1/health", health: true}
		switch probe := argv.at(2); {
		case argv.n == 2:
		case argv.n == 3 && (probe == "--startup" || probe == "--ready" || probe == "--live"):
			q.after = body.add("?probe=").add(probe[2:]).string()
		default:
			return question{}, false
		}
		return q, true
	}
	return question{}, false
}

var body text

// isPlainWord reports whether a word needs no escaping in a request and in JSON, and is no option.
func isPlainWord(word, more string) bool {
	if word == "" || word[0] == '-' || len(word) > 1<<10 {
		return false
	}
	for i := range len(word) {
		c := word[i]
		known := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
		for j := range len(more) {
			known = known || c == more[j]
		}
		if !known {
			return false
		}
	}
	return true
}

// dial connects to the control socket. It refuses a socket on which a user other than root and this user listens.
func dial() int {
	path.n = 0
	path.add(runtimeDir).add("/control.sock")
	var addr syscall.RawSockaddrUnix
	if runtimeDir[0] != '/' || path.n >= len(addr.Path) {
		return -1
	}
	addr.Family = syscall.AF_UNIX
	for i := range path.n {
		addr.Path[i] = int8(path.buf[i]) //nolint:gosec // a byte
	}
	fd := syscall3(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if fd < 0 {
		return fd
	}
	limit := syscall.Timeval{Sec: answerTime}
	for _, option := range [...]uintptr{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&limit)), unsafe.Sizeof(limit))
	}
	if syscall3(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), uintptr(path.n)+3) < 0 {
		return -1
	}
	var peer syscall.Ucred
	size := uint32(unsafe.Sizeof(peer))
	if syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED, uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size))) < 0 {
		return -1
	}
	if peer.Uid != 0 && int(peer.Uid) != syscall3(syscall.SYS_GETEUID, 0, 0, 0) {
		return -1 // another user's socket
	}
	return fd
}

// finish prints an answer and returns the exit code.
func finish(q question, all string, failed int) int {
	const status = len("HTTP/1.1 ")
	end := index(all, "\r\n\r\n")
	if end < 0 || len(all) < status+3 {
		line.add("cannot get an answer of hinit").hint()
		return failed
	}
	head, said := all[:end+2], all[end+4:]
	if all[status] != '2' {
		line.add("cannot ").add(q.doing)
		if q.name != "" {
			line.add(` "`).add(q.name).add(`"`)
		}
		line.add(": ").add(said).add("\n")
		write(2, line.string())
		switch {
		case failed != exitFailed:
			return failed
		case index(head, "\r\nHinit-Error: unknown\r\n") >= 0:
			return exitUnknown
		case index(head, "\r\nHinit-Error: not-allowed\r\n") >= 0:
			return exitNotAllowed
		}
		return failed
	}
	write(1, said)
	switch {
	case q.health && index(said, `"ok":true`) < 0:
		return exitFailed
	case q.named && index(head, "\r\nHinit-Down: 0\r\n") < 0:
		return exitNotUp
	}
	return 0
}

// refuse reports why a command can't be carried out, with advice.
func refuse(name string, argv words, also string, code int) int {
	line.add("cannot run ").add(name)
	if argv.n > 1 && isPlainWord(argv.at(1), "") {
		line.add(" ").add(argv.at(1))
	}
	line.add(": no thread can be made here").add(also).hint()
	return code
}

// hint ends a line with advice and prints it.
func (t *text) hint() {
	t.add("; most likely all process numbers of the container are taken: hinit stop NAME ends who takes them, and so does, in a shell as root, echo stop NAME > ").add(runtimeDir).add("/orders\n")
	write(2, t.string())
}

func write(fd int, s string) int {
	n := 0
	for n < len(s) {
		m := syscall3(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.StringData(s[n:]))), uintptr(len(s)-n))
		if m == -int(syscall.EINTR) {
			continue
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return n
}

func index(s, part string) int {
	for i := 0; i+len(part) <= len(s); i++ {
		if s[i:i+len(part)] == part {
			return i
		}
	}
	return -1
}
