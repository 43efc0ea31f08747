package quick

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
)

// imageEnv makes the test binary the program of another image; its value is the fields of options, one a line.
const imageEnv = "QUICK_TEST_IMAGE"

func TestMain(m *testing.M) {
	image, ok := os.LookupEnv(imageEnv)
	if !ok {
		os.Exit(m.Run())
	}
	f := strings.Split(image, "\n")
	seconds, err := strconv.ParseInt(f[3], 10, 64)
	if err != nil {
		os.Exit(99)
	}
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, imageEnv+"=") })
	os.Exit(run(os.Args, env, options{
		hinit: strings.Fields(f[0]), runtime: f[1], config: f[2], answerTime: seconds, waitTime: seconds,
	}))
}

// world is an image in a directory, whose hinit is a script that says that it was asked, and how.
type world struct {
	options
	t   *testing.T
	env []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "quick") //nolint:usetesting // short: the path of a socket has 107 bytes at most
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	w := &world{t: t, options: options{
		hinit: []string{dir + "/missing", dir + "/hinit"}, runtime: dir + "/run", config: dir + "/hinit.yaml", answerTime: 300,
	}}
	must(t, os.Mkdir(w.runtime, 0o755))
	must(t, os.WriteFile(w.hinit[1], []byte("#!/bin/sh\necho \"hinit is asked: $*\"\nexit 42\n"), 0o755))
	return w
}

// asked is what the image's hinit says.
func asked(words ...string) string { return "hinit is asked: " + strings.Join(words, " ") + "\n" }

func (w *world) run(words ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	cmd := exec.Command("/proc/self/exe", words...)
	cmd.Args[0] = "/opt/hermes/bin/hinit"
	cmd.Env = append([]string{
		imageEnv + "=" + strings.Join([]string{strings.Join(w.hinit, " "), w.runtime, w.config, strconv.FormatInt(w.answerTime, 10)}, "\n"),
		"GORACE=atexit_sleep_ms=0", // a second, for races after the end
		"GOCOVERDIR=" + w.t.TempDir(),
	}, w.env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if _, exited := errors.AsType[*exec.ExitError](err); !exited {
			w.t.Fatal(err)
		}
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// want runs a command and checks everything it says.
func (w *world) want(words []string, code int, stdout, stderr string) {
	w.t.Helper()
	gotCode, gotOut, gotErr := w.run(words...)
	if gotCode != code || gotOut != stdout || gotErr != stderr {
		w.t.Errorf("hinit %q: %d, stdout %q, stderr %q\nwant %d, %q, %q", words, gotCode, gotOut, gotErr, code, stdout, stderr)
	}
}

// answers listens on the socket and gives each connection the next answer, the last one for ever. It returns the requests so far.
func (w *world) answers(answers ...string) (requests func() []string) {
	w.t.Helper()
	l, err := net.Listen("unix", w.runtime+"/control.sock")
	must(w.t, err)
	seen := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				body, _ := io.ReadAll(r.Body)
				seen <- strings.TrimSpace(fmt.Sprintf("%s %s %s %s", r.Method, r.URL, r.Header.Get("Accept"), body))
			}
			_, _ = io.WriteString(conn, answers[min(i, len(answers)-1)])
			_ = conn.Close()
		}
	}()
	w.t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return func() (all []string) {
		for {
			select {
			case r := <-seen:
				all = append(all, r)
			default:
				return all
			}
		}
	}
}

// reply is an answer as Go's server writes it.
func reply(status int, header, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d %s\r\n%sContent-Length: %d\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), header, len(body), body)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestName(t *testing.T) {
	for argv0, want := range map[string]bool{
		"hinit": true, "/opt/hermes/bin/hinit": true, "./hinit": true,
		"hermes": false, "/hinit/hermes": false, "hinit-gateway": false, "hinit-shim": false, "": false, "hinit/": false,
	} {
		if Is([]string{argv0, "status"}) != want {
			t.Errorf("%q: not %v", argv0, want)
		}
	}
	if Is(nil) {
		t.Error("a process without a name takes the short way")
	}
}

func TestWhatIsAskedHere(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"status", "GET /v1/status?as=table text/plain"},
		{"status coder Writer-2 gateway-a_b.c", "GET /v1/status?as=table&name=coder&name=Writer-2&name=gateway-a_b.c text/plain"},
		{"start coder", `POST /v1/services/coder/start text/plain {"wait":true}`},
		{"stop coder --no-wait", `POST /v1/services/coder/stop text/plain {"wait":false}`},
		{"start --no-wait coder", `POST /v1/services/coder/start text/plain {"wait":false}`},
	} {
		w := newWorld(t)
		requests := w.answers(reply(200, "Hinit-Down: 0\r\n", "as hinit says it\n"))
		w.want(strings.Fields(c.words), 0, "as hinit says it\n", "")
		if got := requests(); len(got) != 1 || got[0] != c.want {
			t.Errorf("hinit %s asks %q, want %q", c.words, got, c.want)
		}
	}
}

func TestHinitDoesTheRest(t *testing.T) {
	w := newWorld(t)
	requests := w.answers(reply(200, "Hinit-Down: 0\r\n", "wrong\n"))
	for _, line := range []string{
		"", "help", "--version", "version", "init true", "restart coder", "logs coder", "healthcheck",
		"status --json", "status --watch coder", "status --no-wait", "status -- coder", "status ü", "status a/b", "status a&name=b", "status .",
		"status %41", "start", "start --all", "start a b", "start a --timeout 3s", "stop a --no-wait=false", "stop ..",
	} {
		words := strings.Fields(line)
		w.want(words, 42, asked(words...), "")
	}
	for _, words := range [][]string{{"status", ""}, {"status", "a b"}, {"start", "a\r\n"}} {
		w.want(words, 42, asked(words...), "")
	}
	if got := requests(); len(got) > 0 {
		t.Errorf("it asks %q", got)
	}
}

func TestErrorsAreThoseOfTheCommandLine(t *testing.T) {
	for kind, code := range map[client.Kind]int{
		client.KindUnknown: 6, client.KindNotAllowed: 5, client.KindFailed: 1, client.KindTimeout: 1, client.KindStopping: 1,
		client.KindPermanent: 1, client.KindBadRequest: 1, client.KindInternal: 1,
	} {
		w := newWorld(t)
		w.answers(reply(409, client.ErrorHeader+": "+string(kind)+"\r\n", "it does not\nwork"))
		w.want([]string{"start", "coder"}, code, "", "cannot start \"coder\": it does not; work\n")
		w.want([]string{"status"}, code, "", "cannot show the status: it does not; work\n")
	}
}

func TestNamedServiceThatIsNotUp(t *testing.T) {
	w := newWorld(t)
	w.answers(reply(200, "Hinit-Down: 1\r\n", "table\n"))
	w.want([]string{"status", "coder"}, 3, "table\n", "")
	w.want([]string{"status"}, 0, "table\n", "")
}

// What hinit would ask again, or has not said, is asked by hinit. Nothing of it is printed.
func TestUnclearAnswersGoToHinit(t *testing.T) {
	good := reply(200, "Hinit-Down: 0\r\n", "table\n")
	for name, text := range map[string]string{
		"nothing":           "",
		"no head":           "HTTP/1.1 200 OK\r\n",
		"garbage":           "hello\r\n\r\nthere",
		"another protocol":  strings.Replace(good, "HTTP/1.1", "HTTP/2", 1),
		"cut":               good[:len(good)-1],
		"too much":          good + "x",
		"no length":         strings.Replace(good, "Content-Length: 6\r\n", "", 1),
		"a wrong length":    strings.Replace(good, "Content-Length: 6", "Content-Length: six", 1),
		"a negative length": strings.Replace(good, "Content-Length: 6", "Content-Length: -1", 1),
		"no status":         strings.Replace(good, "200", "2oo", 1),
		"JSON":              strings.Replace(good, "text/plain", "application/json", 1),
		"an error in JSON":  "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
		"not found":         reply(404, "", "404 page not found\n"),
		"a redirection":     reply(301, "", "elsewhere\n"),
		"no table":          reply(200, "", "table\n"),
		"busy":              reply(503, "Hinit-Error: busy\r\n", "no room"),
		"replaced":          reply(503, "Hinit-Error: replaced\r\n", "another image"),
		"far too much":      reply(200, "Hinit-Down: 0\r\n", strings.Repeat("x", maxAnswer)),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.answers(text)
			w.want([]string{"status"}, 42, asked("status"), "")
		})
	}
}

func TestLongTable(t *testing.T) {
	w := newWorld(t)
	table := strings.Repeat("a row of the table\n", 20_000)
	w.answers(reply(200, "Hinit-Down: 0\r\n", table))
	w.want([]string{"status"}, 0, table, "")
}

func TestNobodyAnswers(t *testing.T) {
	w := newWorld(t)
	w.answerTime = 1
	l, err := net.Listen("unix", w.runtime+"/control.sock")
	must(t, err)
	defer l.Close()
	w.want([]string{"status"}, exitUnreachable, "", "cannot show the status: hinit does not answer on \""+w.runtime+"/control.sock\"\n")
	w.want([]string{"stop", "coder"}, exitUnreachable, "", "cannot stop \"coder\": hinit does not answer on \""+w.runtime+"/control.sock\"\n")
}

func TestOutputThatCannotBeWritten(t *testing.T) {
	w := newWorld(t)
	w.answers(reply(200, "Hinit-Down: 0\r\n", "table\n"))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	must(t, err)
	defer full.Close()
	cmd := exec.Command("/proc/self/exe", "status")
	cmd.Args[0], cmd.Stdout = "hinit", full
	cmd.Env = []string{imageEnv + "=" + strings.Join([]string{w.hinit[1], w.runtime, w.config, "300"}, "\n")}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() != exitFailed || !strings.Contains(stderr.String(), "cannot show the status: ") {
		t.Errorf("%v, %q", err, stderr.String())
	}
}

// A server that sends a byte now and then does not hold anybody up.
func TestAnswerInDrops(t *testing.T) {
	w := newWorld(t)
	w.answerTime = 1
	l, err := net.Listen("unix", w.runtime+"/control.sock")
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		for err == nil {
			_, err = conn.Write([]byte("H"))
			<-time.After(10 * time.Millisecond)
		}
	}()
	w.want([]string{"status"}, exitUnreachable, "", "cannot show the status: hinit does not answer on \""+w.runtime+"/control.sock\"\n")
	must(t, l.Close())
	<-done
}

func TestWhereTheSocketIs(t *testing.T) {
	const table = "table\n"
	status := []string{"status"}
	t.Run("nowhere", func(t *testing.T) {
		newWorld(t).want(status, 42, asked("status"), "")
	})
	t.Run("a configuration", func(t *testing.T) {
		w := newWorld(t)
		w.answers(reply(200, "Hinit-Down: 0\r\n", table))
		for text, here := range map[string]bool{
			"": true, "home: /opt/data\n": true, "control: {others: none}\n": true,
			"control: {socket: /run/x}\n": false, "control: {\"s\\x6fcket\": /run/x}\n": false, strings.Repeat("#", maxConfig): false,
		} {
			must(t, os.WriteFile(w.config, []byte(text), 0o644))
			if here {
				w.want(status, 0, table, "")
			} else {
				w.want(status, 42, asked("status"), "")
			}
		}
		must(t, os.Remove(w.config))
		must(t, os.Mkdir(w.config, 0o755))
		w.want(status, 42, asked("status"), "")
	})
	t.Run("HINIT_CONFIG", func(t *testing.T) {
		w := newWorld(t)
		w.answers(reply(200, "Hinit-Down: 0\r\n", table))
		w.env = []string{"HINIT_CONFIG=/nowhere"}
		w.want(status, 42, asked("status"), "")
		w.env = append(w.env, "HINIT_RUNTIME_DIR="+w.runtime)
		w.want(status, 0, table, "")
	})
	t.Run("HINIT_RUNTIME_DIR", func(t *testing.T) {
		w := newWorld(t)
		w.answers(reply(200, "Hinit-Down: 0\r\n", table))
		dir := w.runtime
		w.runtime = "/nowhere"
		for value, here := range map[string]bool{
			dir: true, dir + "/": false, dir + "/.": false, "/" + dir: false, dir + "/../run": false, "/": false, "": false, "run": false,
			dir + "/nowhere": false,
		} {
			w.env = []string{"HINIT_RUNTIME_DIR=" + value}
			if here {
				w.want(status, 0, table, "")
			} else {
				w.want(status, 42, asked("status"), "")
			}
		}
	})
	t.Run("of a stranger", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root, to give a directory away")
		}
		w := newWorld(t)
		w.answers(reply(200, "Hinit-Down: 0\r\n", table))
		link := w.runtime + "/link" // in a directory such as /tmp
		must(t, os.Symlink(w.runtime, link))
		must(t, os.Lchown(link, 54321, 54321))
		for _, dir := range []string{link, link + "/", link + "/.", link + "//"} {
			w.env = []string{"HINIT_RUNTIME_DIR=" + dir}
			w.want(status, 42, asked("status"), "")
		}
		w.env = nil
		w.want(status, 0, table, "")
		must(t, os.Chown(w.runtime, 54321, 54321))
		w.want(status, 42, asked("status"), "")
	})
	t.Run("behind a link", func(t *testing.T) {
		w := newWorld(t)
		w.answers(reply(200, "Hinit-Down: 0\r\n", table))
		link := filepath.Join(filepath.Dir(w.runtime), "link")
		must(t, os.Symlink(w.runtime, link))
		w.env = []string{"HINIT_RUNTIME_DIR=" + link}
		w.want(status, 0, table, "")
	})
}

func TestHinitIsMissing(t *testing.T) {
	w := newWorld(t)
	self, err := os.Executable()
	must(t, err)
	w.hinit = []string{"/nowhere/hinit", self} // which would run for ever
	w.want([]string{"version"}, exitNotFound, "",
		"cannot find hinit: it is none of /nowhere/hinit, "+self+"; link one of them to the init\n")
	broken := filepath.Join(t.TempDir(), "hinit")
	must(t, os.WriteFile(broken, []byte("no program"), 0o755))
	w.hinit = []string{broken}
	w.want([]string{"version"}, exitNoExec, "", "cannot execute \""+broken+"\": exec format error\n")
}

func FuzzParseAnswer(f *testing.F) {
	f.Add(reply(200, "Hinit-Down: 0\r\n", "table\n"))
	f.Add(reply(404, "Hinit-Error: unknown\r\n", "no such profile"))
	f.Add("HTTP/1.1 200 OK\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, ok := parseAnswer(text)
		head, _, _ := strings.Cut(text, "\r\n\r\n")
		if !ok || strings.Contains(strings.ReplaceAll(head, "\r\n", ""), "\n") { // where a line ends with less, net/http sees other lines
			return
		}
		r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(text)), nil)
		if err != nil {
			return // it is stricter with what no server writes
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if len(r.TransferEncoding) == 0 && (err != nil || r.StatusCode == 200 && string(body) != a.body || r.StatusCode != a.status) {
			t.Errorf("%q: %+v, and net/http reads %d %q, %v", text, a, r.StatusCode, body, err)
		}
	})
}

// TestAnAnswerOfAStrangersIsNotTaken: the directory of the socket was root's when it was looked at, and another user listens there now.
func TestAnAnswerOfAStrangersIsNotTaken(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root")
	}
	w := newWorld(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: w.runtime + "/control.sock"}))
	listening := make(chan error)
	go func() { // listen(2) takes the effective user for SO_PEERCRED
		runtime.LockOSThread() // never undone: the thread ends with the goroutine
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0))
		if errno != 0 {
			listening <- errno
			return
		}
		listening <- unix.Listen(fd, 10)
	}()
	must(t, <-listening)
	f := os.NewFile(uintptr(fd), "socket")
	l, err := net.FileListener(f)
	must(t, errors.Join(err, f.Close()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn)) // a caller that does not trust asks nothing
			_, _ = io.WriteString(conn, reply(200, "Hinit-Down: 0\r\n", "all is well, says the agent\n"))
			_ = conn.Close()
		}
	}()
	w.want([]string{"status"}, 42, asked("status"), "")
	must(t, l.Close())
	<-done
}
