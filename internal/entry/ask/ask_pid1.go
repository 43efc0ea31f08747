//go:build linux && (amd64 || arm64)

package ask

import (
	"cmp"
	"strings"
	"syscall"
	"unsafe"

	"hinit/internal/entry"
	"hinit/internal/entry/bare"
)

// Exit codes of the command line of hinit and of the s6 tools (docs/reference/exit-codes.md). Package cmdline defines them
// too, but hinit does not link it.
const (
	exitFailed      = 1
	exitNotUp       = 3
	exitUnreachable = 4
	exitNotAllowed  = 5
	exitUnknown     = 6
	exitSystemError = 111
)

// defaultRuntimeDir is the directory of the control socket, unless HINIT_RUNTIME_DIR names another.
const defaultRuntimeDir = "/run/hinit"

var runtimeDir string // directory of the control socket

// Time limits in seconds for an answer of PID 1. answerSeconds is for a stop, which may take PID 1 up to 40 seconds.
// quickAnswerSeconds is for requests that PID 1 answers at once.
const answerSeconds, quickAnswerSeconds = 50, 5

// runtimeThreads is the number of threads that must be possible before the Go runtime is started. A hinit command begins with 4
// to 6 threads, and other programs may take PIDs in between.
const runtimeThreads = 8

// Static buffers, because there is no heap and the stack can't grow.
var (
	requestBuffer, bodyBuffer, lineBuffer bare.TextBuffer
	answerBuffer                          [256 << 10]byte
)

// pid1Request is an HTTP request to the control API of PID 1.
type pid1Request struct {
	action                                      string // purpose of the request, for messages: the text after "cannot"
	method, pathPrefix, serviceName, pathSuffix string // the path of the request is before + name + after
	body                                        string
	namesService, isHealthCheck                 bool
	answersAtOnce                               bool // PID 1 answers at once, and the request may be repeated
	failureCode                                 int  // exit code of the command if the request fails
}

// Only the assembly calls these functions.
var _, _ = begin, beginHinit

// beginHinit runs before the Go runtime of hinit, as begin does in hinit-tools. If hinit-tools is missing, it carries out the
// commands that parse knows. For any other command, or if PID 1 can't be reached, it lets the runtime start, which reports the
// missing hinit-tools.
func beginHinit(stack *uintptr) {
	argv, env, missing := entry.Begin(stack)
	if !missing {
		return
	}
	runtimeDir = cmp.Or(env.Getenv("HINIT_RUNTIME_DIR"), defaultRuntimeDir)
	if q, known := parseCommand(bare.BaseName(argv.Index(0)), argv); known {
		if fd := dialPID1(answerSeconds); fd >= 0 {
			bare.Syscall3(syscall.SYS_EXIT_GROUP, uintptr(printAnswer(q, sendRequest(fd, q))), 0, 0)
		}
	}
}

// begin runs before the Go runtime: hinit_bare, the assembly at the entry point, calls it. When it returns, the runtime
// starts.
func begin(stack *uintptr) {
	argv, env := bare.InitialStack(stack)
	name := bare.BaseName(argv.Index(0))
	if !entry.IsToolsCommand(name, argv) && name != "hinit-boot" { // PID 1 does not see why its boot program can't start
		return
	}
	dir := env.Getenv("HINIT_RUNTIME_DIR")
	runtimeDir = cmp.Or(dir, defaultRuntimeDir)
	q, known := parseCommand(name, argv)
	code := -1
	// the table for a terminal has colours
	isPlain := bare.Syscall3(syscall.SYS_IOCTL, 1, syscall.TCGETS, uintptr(unsafe.Pointer(&answerBuffer))) == -int(syscall.ENOTTY)
	// the configuration that HINIT_CONFIG names may have another socket
	if known && q.answersAtOnce && (dir != "" || env.Getenv("HINIT_CONFIG") == "") && isPlain {
		code = runQuickly(q)
	}
	if code < 0 && entry.HasRoomFor(runtimeThreads) {
		return
	}
	if code < 0 {
		code = runWithoutThreads(name, argv, q, known)
	}
	bare.Syscall3(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
}

// runQuickly carries a command out and returns its exit code. Without a success from PID 1, it returns -1; the runtime then
// starts and carries the command out again.
func runQuickly(q pid1Request) int {
	fd := dialPID1(quickAnswerSeconds)
	if fd < 0 {
		return -1
	}
	all := sendRequest(fd, q)
	head, said, _ := strings.Cut(all, "\r\n\r\n")
	if len(head) < statusOffset+3 || head[statusOffset] != '2' || !isComplete(all, said) || bare.Write(1, said) != len(said) {
		return -1
	}
	return exitCode(q, head, said)
}

// isComplete reports whether answer is complete. body is the body of the answer. With status 204, an answer has no body and no
// size.
func isComplete(answer, body string) bool {
	lineBuffer.Len = 0
	return answer[statusOffset+2] == '4' || strings.Contains(answer, lineBuffer.Add("\r\nContent-Length: ").AddNumber(len(body)).Add("\r\n").String())
}

// runWithoutThreads carries a command out and returns its exit code. If known is false, it prints why the command can't be
// carried out.
func runWithoutThreads(name string, argv bare.CStrings, q pid1Request, known bool) int {
	requestBuffer.Len, lineBuffer.Len = 0, 0
	if !known {
		return printRefusal(name, argv, "", q.failureCode)
	}
	fd := dialPID1(answerSeconds)
	if fd < 0 {
		return printRefusal(name, argv, ", and hinit cannot be reached on its socket", max(q.failureCode, exitUnreachable))
	}
	return printAnswer(q, sendRequest(fd, q))
}

// sendRequest sends a request and returns the answer. It returns "" if the request is too long, or if PID 1 does not take it.
func sendRequest(fd int, q pid1Request) string {
	const noSignal = 0x4000 // MSG_NOSIGNAL: a closed connection must not end this process
	requestBuffer.Add(q.method).Add(" ").Add(q.pathPrefix).Add(q.serviceName).Add(q.pathSuffix)
	requestBuffer.Add(" HTTP/1.1\r\nHost: hinit\r\nAccept: text/plain\r\nConnection: close\r\nContent-Length: ").AddNumber(len(q.body)).Add("\r\n\r\n").Add(q.body)
	if requestBuffer.Len == len(requestBuffer.Buf) ||
		bare.Syscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&requestBuffer.Buf)), uintptr(requestBuffer.Len), noSignal, 0) != requestBuffer.Len {
		return ""
	}
	return unsafe.String(&answerBuffer[0], bare.Read(fd, answerBuffer[:]))
}

// parseCommand turns a command line into a request. It knows only the commands that people need when the kernel can start no
// process.
func parseCommand(name string, argv bare.CStrings) (q pid1Request, ok bool) {
	switch verb, word := argv.Index(1), argv.Index(2); {
	case name == "s6-svc":
		// accept only letters that don't wait, and an absolute path
		ok = argv.Len == 3 && len(verb) > 1 && verb[0] == '-' && isPlainWord(verb[1:], "") && verb[1] != 'w' && verb[1] != 'T' && verb[1] != 's' &&
			word != "" && word[0] == '/' && isPlainWord(word, "/")
		bodyBuffer.Add(`{"dir":"`).Add(word).Add(`","flags":"`).Add(verb[min(1, len(verb)):]).Add(`"}`)
		q = pid1Request{action: "control the slot", method: "POST", pathPrefix: "/v1/slots/control", body: bodyBuffer.String(), answersAtOnce: strings.Trim(verb, "-ud") == ""}
	case name != "hinit":
	case verb == "stop" || verb == "start" || verb == "restart":
		waits, goesOn := argv.Len == 3, argv.Len == 4 && argv.Index(3) == "--no-wait"
		ok = (waits || goesOn) && isPlainWord(word, "")
		q = pid1Request{action: verb, method: "POST", pathPrefix: "/v1/services/", serviceName: word, pathSuffix: bodyBuffer.Add("/").Add(verb).String(), body: `{"wait":true}`}
		if goesOn {
			q.body, q.answersAtOnce = `{"wait":false}`, verb != "restart"
		}
	case verb == "status":
		ok = true
		for i := 2; i < argv.Len; i++ {
			ok = ok && isPlainWord(argv.Index(i), "")
			bodyBuffer.Add("&name=").Add(argv.Index(i))
		}
		q = pid1Request{action: "show the status", method: "GET", pathPrefix: "/v1/status?as=table", pathSuffix: bodyBuffer.String(), namesService: argv.Len > 2, answersAtOnce: true}
	case verb == "healthcheck":
		q = pid1Request{action: "check the health", method: "GET", pathPrefix: "/v1/health", isHealthCheck: true}
		ok = argv.Len == 2
		if word == "--startup" || word == "--ready" || word == "--live" {
			q.pathSuffix, ok = bodyBuffer.Add("?probe=").Add(word[2:]).String(), argv.Len == 3
		}
	}
	if q.failureCode = exitFailed; name != "hinit" {
		q.failureCode = exitSystemError
	}
	return q, ok
}

// isPlainWord reports whether a word is no option, and needs no escaping in a request or in JSON: it has letters, digits, "-",
// "_", "." and the characters in more.
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

// dialPID1 connects to the control socket and returns the descriptor, or a negative number after an error. It refuses a server
// that is neither root nor this user. Each read and write may take the given number of seconds.
func dialPID1(seconds int64) int {
	size := requestBuffer.Add(runtimeDir).Add("/control.sock").Len
	requestBuffer.Len = 0
	var addr syscall.RawSockaddrUnix
	if runtimeDir[0] != '/' || size >= len(addr.Path) {
		return -1
	}
	addr.Family = syscall.AF_UNIX
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&addr.Path)), len(addr.Path)), requestBuffer.Buf[:size])
	first := bare.Syscall3(syscall.SYS_SOCKET, syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if first < 0 {
		return first
	}
	// If standard output or standard error is closed, the socket gets its number, and output would go to PID 1. So move the
	// socket.
	fd := bare.Syscall3(syscall.SYS_FCNTL, uintptr(first), syscall.F_DUPFD_CLOEXEC, 3)
	bare.Syscall3(syscall.SYS_CLOSE, uintptr(first), 0, 0)
	limit := syscall.Timeval{Sec: seconds}
	for _, option := range [...]uintptr{syscall.SO_RCVTIMEO, syscall.SO_SNDTIMEO} {
		bare.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, option, uintptr(unsafe.Pointer(&limit)), unsafe.Sizeof(limit))
	}
	if bare.Syscall3(syscall.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr)), uintptr(size)+3) < 0 {
		return -1
	}
	var peer syscall.Ucred
	room := uint32(unsafe.Sizeof(peer))
	if bare.Syscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED, uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&room))) < 0 ||
		peer.Uid != 0 && int(peer.Uid) != bare.Syscall3(syscall.SYS_GETEUID, 0, 0, 0) {
		return -1 // the socket belongs to another user
	}
	// A server in another PID namespace is the init of another container with the same volume. In the PID namespace of a pod,
	// only package dial can tell them apart.
	if peer.Pid == 0 || peer.Pid != 1 && seconds == quickAnswerSeconds && runtimeDir == defaultRuntimeDir {
		return -1
	}
	return fd
}

// statusOffset is the position of the status code in an answer.
const statusOffset = len("HTTP/1.1 ")

// printAnswer prints the answer of PID 1, and returns the exit code of the command.
func printAnswer(q pid1Request, all string) int {
	head, said, complete := strings.Cut(all, "\r\n\r\n")
	if !complete || len(head) < statusOffset+3 {
		printHint(lineBuffer.Add("cannot get an answer of hinit"))
		return q.failureCode
	}
	if q.isHealthCheck && q.pathSuffix == "?probe=live" && head[statusOffset] == '5' && strings.Contains(said, `"kind":"busy"`) {
		return 0 // dial.Client.Probe decides in the same way
	}
	if head[statusOffset] != '2' {
		lineBuffer.Add("cannot ").Add(q.action)
		if q.serviceName != "" {
			lineBuffer.Add(` "`).Add(q.serviceName).Add(`"`)
		}
		lineBuffer.Add(": ").Add(said).Add("\n")
		bare.Write(2, lineBuffer.String())
		switch {
		case q.failureCode == exitFailed && strings.Contains(head, "\r\nHinit-Error: unknown"):
			return exitUnknown
		case q.failureCode == exitFailed && strings.Contains(head, "\r\nHinit-Error: not-allowed"):
			return exitNotAllowed
		}
		return q.failureCode
	}
	if bare.Write(1, said) != len(said) || !isComplete(all, said) {
		bare.Write(2, "cannot show the whole answer of hinit\n")
		return q.failureCode
	}
	return exitCode(q, head, said)
}

// exitCode returns the exit code of a successful command, from the head and the body of the answer.
func exitCode(q pid1Request, head, body string) int {
	switch {
	case q.isHealthCheck && !strings.Contains(body, `"ok":true`):
		return exitFailed
	case q.namesService && !strings.Contains(head, "\r\nHinit-Down: 0"):
		return exitNotUp
	}
	return 0
}

// printRefusal prints why a command can't be carried out, with advice, and returns code. also is one more sentence, or "".
func printRefusal(name string, argv bare.CStrings, also string, code int) int {
	lineBuffer.Add("cannot run ").Add(name)
	if argv.Len > 1 && isPlainWord(argv.Index(1), "") {
		lineBuffer.Add(" ").Add(argv.Index(1))
	}
	printHint(lineBuffer.Add(": no thread can be made here").Add(also))
	return code
}

// printHint prints a message, with advice at its end.
func printHint(t *bare.TextBuffer) {
	t.Add("; most likely all process numbers of the container are taken: hinit stop NAME ends who takes them, and so does, in a shell as root, echo stop NAME > ").Add(runtimeDir).Add("/orders\n")
	bare.Write(2, t.String())
}
