// Package quick is the short way to the init for the commands that are typed most: `hinit status`, start and stop. It lives in the
// binary of the exec shim, which starts in half the time that hinit takes, and asks with bare system calls for answers that
// need no taking apart: what to print and, in a header, how it went (docs/reference/control-api.md, docs/adr/0021).
//
// It promises to do and to say what hinit would, but for a command that is interrupted, which ends by the signal. Whatever it does not
// know, from another command or option to an answer that it did not expect, it leaves to hinit, which it becomes. So it carries out
// only what may be asked twice. It starts no goroutine.
package quick

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Name is the name under which the binary of the shim takes the short way.
const Name = "hinit"

// The exit codes are those of hinit's command line (docs/reference/exit-codes.md).
const (
	exitDone        = 0
	exitFailed      = 1
	exitNotUp       = 3
	exitUnreachable = 4
	exitNotAllowed  = 5
	exitUnknown     = 6
	exitNoExec      = 126
	exitNotFound    = 127
)

// options is what it takes from its image, so that tests can be another image.
type options struct {
	hinit   []string // hinit itself; the first that is there counts
	runtime string   // the runtime directory where nobody says otherwise
	config  string   // the configuration that may say otherwise

	answerTime int64 // seconds for an answer that waits for nothing
	waitTime   int64 // seconds for one that waits for its effect
}

// image is the image this program is compiled for. The times are those of package client.
func image() options {
	return options{
		hinit: []string{"/usr/local/bin/hinit", "/init"}, runtime: "/run/hinit", config: "/etc/hinit/hinit.yaml",
		answerTime: 10, waitTime: 50,
	}
}

// Is reports whether argv, that of the process, calls for the short way.
func Is(argv []string) bool {
	return len(argv) > 0 && argv[0][strings.LastIndexByte(argv[0], '/')+1:] == Name
}

// Main carries out a command of hinit and returns its exit code, or becomes hinit. argv and env are those of the process,
// os.Args and os.Environ(). It blocks for 10 seconds at the most, 50 where it waits for an effect, and hinit after it as long as it
// does.
func Main(argv, env []string) int { return run(argv, env, image()) }

func run(argv, env []string, o options) int {
	if q, ok := parse(argv[1:]); ok {
		if socket, ok := o.socket(); ok {
			if code, ok := o.ask(socket, q); ok {
				return code
			}
		}
	}
	return o.become(argv, env)
}

// become makes hinit of this process, and returns only when that didn't work. unix.Exec puts back the limit of open files, which Go
// has raised.
func (o *options) become(argv, env []string) int {
	for _, path := range o.hinit {
		var st, self unix.Stat_t
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || unix.Access(path, unix.X_OK) != nil {
			continue
		}
		if unix.Stat("/proc/self/exe", &self) == nil && self.Dev == st.Dev && self.Ino == st.Ino {
			continue // it would run for ever
		}
		err := unix.Exec(path, argv, env)
		say("cannot execute " + strconv.Quote(path) + ": " + err.Error())
		return exitNoExec
	}
	say("cannot find hinit: it is none of " + strings.Join(o.hinit, ", ") + "; link one of them to the init")
	return exitNotFound
}

// question is a command that can be carried out here.
type question struct {
	doing  string // as hinit says it after "cannot"
	method string
	path   string
	body   string
	named  bool // exit code 3 tells of a named service that is not up
	waits  bool
	looks  bool // it says how the answer is to look
}

// parse reads the words behind "hinit". It knows status with any names, and start and stop with one name and --no-wait. A name
// that needs quoting in a request is none that it knows.
func parse(words []string) (q question, ok bool) {
	if len(words) == 0 {
		return question{}, false
	}
	names := make([]string, 0, len(words))
	noWait := false
	for _, w := range words[1:] {
		switch {
		case w == "--no-wait" && words[0] != "status":
			noWait = true
		case plain(w):
			names = append(names, w)
		default:
			return question{}, false
		}
	}
	switch words[0] {
	case "status":
		q = question{doing: "show the status", method: "GET", path: "/v1/status?as=table", named: len(names) > 0}
		for _, name := range names {
			q.path += "&name=" + name
		}
		how := look()
		q.path, q.looks = q.path+how, how != ""
		return q, true
	case "start", "stop":
		if len(names) != 1 || !noWait && isTerminal(2) { // hinit shows there how long it takes
			return question{}, false
		}
		return question{
			doing: words[0] + " " + strconv.Quote(names[0]), method: "POST", path: "/v1/services/" + names[0] + "/" + words[0],
			body: `{"wait":` + strconv.FormatBool(!noWait) + `}`, waits: !noWait,
		}, true
	}
	return question{}, false
}

func isTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// look is how a table has to look here, as parameters: on a terminal as wide as that, in colours unless they are not wanted.
func look() (parameters string) {
	if !isTerminal(1) {
		return ""
	}
	if size, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ); err == nil && size.Col > 0 {
		parameters = "&width=" + strconv.Itoa(int(size.Col))
	}
	if os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" {
		parameters += "&colour=1"
	}
	return parameters
}

// plain reports whether a word is a name that stands for itself in a path and in a query.
func plain(word string) bool {
	if word == "" || word[0] == '-' || word[0] == '.' {
		return false
	}
	for i := range len(word) {
		switch c := word[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// maxConfig is more than a configuration has that says nothing of sockets.
const maxConfig = 64 << 10

// socket returns where the control socket has to be if it is in the first place that hinit looks at (boot.SocketCandidates): the
// directory that HINIT_RUNTIME_DIR names, or /run/hinit, if it belongs to root or the caller. A configuration that may name
// another place is read by hinit.
func (o *options) socket() (path string, ok bool) {
	dir := os.Getenv("HINIT_RUNTIME_DIR")
	if dir == "" {
		if os.Getenv("HINIT_CONFIG") != "" || o.mentionsSocket() {
			return "", false
		}
		dir = o.runtime
	}
	if !clean(dir) {
		return "", false
	}
	var st unix.Stat_t
	if unix.Lstat(dir, &st) != nil || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return "", false
	}
	return dir + "/control.sock", true
}

// clean reports whether a path is absolute and names one thing only: behind a slash at the end lstat(2) would look at what a link of
// a stranger's leads to, and take it for the link.
func clean(path string) bool {
	if path[0] != '/' {
		return false
	}
	for more := true; more; {
		var name string
		name, path, more = strings.Cut(path[1:], "/")
		if name == "" || name == "." || name == ".." {
			return false
		}
		path = "/" + path
	}
	return true
}

// mentionsSocket reports whether the configuration says something of a socket, or can't be told not to. A key can have escapes in
// it, which begin with a backslash.
func (o *options) mentionsSocket() bool {
	fd, err := retried(func() (int, error) { return unix.Open(o.config, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) })
	if err != nil {
		return err != unix.ENOENT //nolint:errorlint // a bare errno
	}
	defer unix.Close(fd)
	buf := make([]byte, maxConfig)
	n := 0
	for n < len(buf) {
		m, err := retried(func() (int, error) { return unix.Read(fd, buf[n:]) })
		if err != nil {
			return true
		}
		if m == 0 {
			text := string(buf[:n])
			return strings.Contains(text, "socket") || strings.Contains(text, `\`)
		}
		n += m
	}
	return true
}

// retried makes a system call again that a signal has interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR { //nolint:errorlint // a bare errno
			return n, err
		}
	}
}

// say writes one line to stderr. When that fails there is nobody left to tell.
func say(line string) { _, _ = os.Stderr.WriteString(line + "\n") }
