//go:build linux && (amd64 || arm64)

package entry

import (
	"strings"
	"syscall"
	"unsafe"

	"hinit/internal/entry/bare"
)

// Exit codes of the command line of hinit and of the s6 tools (docs/reference/exit-codes.md).
const (
	exitFailed      = 1
	exitNotUp       = 3
	exitUnreachable = 4
	exitNotAllowed  = 5
	exitUnknown     = 6
	exitSystem      = 111
)

// runtimeDir is the directory of the control socket, unless HINIT_RUNTIME_DIR names another.
var runtimeDir = "/run/hinit"

// answerTime is how many seconds to wait for PID 1, which itself waits up to 40 seconds for a service to stop.
const answerTime = 50

// Static buffers, because there is no heap and the stack can't grow.
var (
	request, path, line bare.Text
	answer              [256 << 10]byte // the answer of PID 1; a longer one is cut off
)

// pid1Request is an HTTP request to the control API of PID 1.
type pid1Request struct {
	doing                       string // what the request does, for messages: the text after "cannot"
	method, before, name, after string // the path of the request is before + name + after
	body                        string
	named, health               bool
}

// askPID1 sends the request of a command line to PID 1, and returns the exit code. missing means that hinit-tools is not
// installed. Then it returns -1 for a command that it does not know, or if it can't reach PID 1. The Go runtime then goes on
// and reports the error.
func askPID1(name string, argv, env bare.CStrings, missing bool) int {
	failed := exitFailed
	if name != "hinit" {
		failed = exitSystem
	}
	if dir := env.Get("HINIT_RUNTIME_DIR"); dir != "" {
		runtimeDir = dir
	}
	q, ok := parse(name, argv)
	if !ok && missing {
		return -1
	}
	if !ok {
		return printRefusal(name, argv, "", failed)
	}
	fd := dial()
	if fd < 0 && missing {
		return -1
	}
	if fd < 0 {
		if name == "hinit" {
			failed = exitUnreachable
		}
		return printRefusal(name, argv, ", and hinit cannot be reached on its socket", failed)
	}
	request.Add(q.method).Add(" ").Add(q.before).Add(q.name).Add(q.after)
	request.Add(" HTTP/1.1\r\nHost: hinit\r\nAccept: text/plain\r\nConnection: close\r\nContent-Length: ").Num(len(q.body)).Add("\r\n\r\n").Add(q.body)
	if bare.Write(fd, request.String()) != request.N {
		return printRefusal(name, argv, ", and hinit does not take the request", failed)
	}
	return printAnswer(q, unsafe.String(&answer[0], bare.Read(fd, answer[:])), failed)
}

// parse turns a command line into a request. It knows only the commands that people need when no process can be started.
func parse(name string, argv bare.CStrings) (q pid1Request, ok bool) {
	if name == "s6-svc" {
		// accept only letters that don't wait, and an absolute path
		flags, dir := argv.At(1), argv.At(2)
		if argv.N != 3 || len(flags) < 2 || flags[0] != '-' || !isPlainWord(flags[1:], "") || flags[1] == 'w' || flags[1] == 'T' || flags[1] == 's' ||
			dir == "" || dir[0] != '/' || !isPlainWord(dir, "/") {
			return pid1Request{}, false
		}
		body.Add(`{"dir":"`).Add(dir).Add(`","flags":"`).Add(flags[1:]).Add(`"}`)
		return pid1Request{doing: "control the slot", method: "POST", before: "/v1/slots/control", body: body.String()}, true
	}
	if name != "hinit" {
		return pid1Request{}, false
	}
	switch verb := argv.At(1); verb {
	case "stop", "start", "restart":
		b := `{"wait":true}`
		if argv.N == 4 && argv.At(3) == "--no-wait" {
			b = `{"wait":false}`
		} else if argv.N != 3 {
			return pid1Request{}, false
		}
		if !isPlainWord(argv.At(2), "") {
			return pid1Request{}, false
		}
		body.Add("/").Add(verb)
		return pid1Request{doing: verb, method: "POST", before: "/v1/services/", name: argv.At(2), after: body.String(), body: b}, true
	case "status":
		for i := 2; i < argv.N; i++ {
			if !isPlainWord(argv.At(i), "") {
				return pid1Request{}, false
			}
			body.Add("&name=").Add(argv.At(i))
		}
		return pid1Request{doing: "show the status", method: "GET", before: "/v1/status?as=table", after: body.String(), named: argv.N > 2}, true
	case "healthcheck":
		q := pid1Request{doing: "check the health", method: "GET", before: "/v1/health", health: true}
		switch probe := argv.At(2); {
		case argv.N == 2:
		case argv.N == 3 && (probe == "--startup" || probe == "--ready" || probe == "--live"):
			q.after = body.Add("?probe=").Add(probe[2:]).String()
		default:
			return pid1Request{}, false
		}
		return q, true
	}
	return pid1Request{}, false
}

var body bare.Text

// isPlainWord reports whether a word is no option, and needs no escaping in a request or in JSON: it has letters, digits,
// "-", "_", "." and the characters in more.
func isPlainWord(word, more string) bool {
	if word == "" || word[0] == '-' || len(word) > 1<<10 {
		return false
	}
	for i := range len(word) {
		c := word[i]
		known := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
		if !known && strings.IndexByte(more, c) < 0 {
			return false
		}
	}
	return true
}

// dial connects to the control socket and returns the descriptor, or a negative number after an error. It refuses a server
// that is neither root nor this user.
func dial() int {
	path.N = 0
	path.Add(runtimeDir).Add("/control.sock")
	var addr syscall.RawSockaddrUnix
	if runtimeDir[0] != '/' || path.N >= len(addr.Path) {
		return -1
	}
	addr.Family = syscall.AF_UNIX
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&addr.Path)), len(addr.Path)), path.String())
	fd := bare.Syscall3(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if fd < 0 {
		return fd
	}
	limit := syscall.Timeval{Sec: answerTime}
	for _, option := range [...]uintptr{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		bare.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&limit)), unsafe.Sizeof(limit))
	}
	if bare.Syscall3(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), uintptr(path.N)+3) < 0 {
		return -1
	}
	var peer syscall.Ucred
	size := uint32(unsafe.Sizeof(peer))
	if bare.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED, uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size))) < 0 {
		return -1
	}
	if peer.Uid != 0 && int(peer.Uid) != bare.Syscall3(syscall.SYS_GETEUID, 0, 0, 0) {
		return -1 // the socket belongs to another user
	}
	if peer.Pid == 0 {
		return -1 // a server in another PID namespace is the init of another container with the same volume
	}
	return fd
}

// printAnswer prints the answer of PID 1, and returns the exit code of the command. failed is the code of a failure.
func printAnswer(q pid1Request, all string, failed int) int {
	const status = len("HTTP/1.1 ")
	head, said, complete := strings.Cut(all, "\r\n\r\n")
	if !complete || len(all) < status+3 {
		printHint(line.Add("cannot get an answer of hinit"))
		return failed
	}
	if q.health && q.after == "?probe=live" && all[status] == '5' && strings.Contains(said, `"kind":"busy"`) {
		return 0 // dial.Client.Probe decides in the same way
	}
	if all[status] != '2' {
		line.Add("cannot ").Add(q.doing)
		if q.name != "" {
			line.Add(` "`).Add(q.name).Add(`"`)
		}
		line.Add(": ").Add(said).Add("\n")
		bare.Write(2, line.String())
		switch {
		case failed != exitFailed:
			return failed
		case strings.Contains(head, "\r\nHinit-Error: unknown"):
			return exitUnknown
		case strings.Contains(head, "\r\nHinit-Error: not-allowed"):
			return exitNotAllowed
		}
		return failed
	}
	bare.Write(1, said)
	switch {
	case q.health && !strings.Contains(said, `"ok":true`):
		return exitFailed
	case q.named && !strings.Contains(head, "\r\nHinit-Down: 0"):
		return exitNotUp
	}
	return 0
}

// printRefusal prints why a command can't be carried out, with advice, and returns code.
func printRefusal(name string, argv bare.CStrings, also string, code int) int {
	line.Add("cannot run ").Add(name)
	if argv.N > 1 && isPlainWord(argv.At(1), "") {
		line.Add(" ").Add(argv.At(1))
	}
	printHint(line.Add(": no thread can be made here").Add(also))
	return code
}

// printHint prints a message, with advice at its end.
func printHint(t *bare.Text) {
	t.Add("; most likely all process numbers of the container are taken: hinit stop NAME ends who takes them, and so does, in a shell as root, echo stop NAME > ").Add(runtimeDir).Add("/orders\n")
	bare.Write(2, t.String())
}
