//go:build linux && (amd64 || arm64)

package ask_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/testkit"
)

// A status, or an order without a wait, must not start the Go runtime, which costs more than the command itself. The runtime
// must handle every incomplete success, and every command that it would print differently. GOMEMLIMIT ends each Go program at
// its start with code 2.
func TestACommandIsAnsweredWithoutTheRuntime(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := t.TempDir()
	if err := testkit.Build(dir, "hinit"); err != nil {
		t.Fatal(err)
	}
	const up, down = "200 OK\r\nHinit-Down: 0\r\nContent-Length: 5\r\n\r\na up\n", "200 OK\r\nHinit-Down: 1\r\nContent-Length: 7\r\n\r\na down\n"
	const runtime = 2
	for _, tt := range []struct {
		words, answer, env, out string
		code                    int
	}{
		{words: "status", answer: up, out: "a up\n"},
		{words: "status a", answer: up, out: "a up\n"},
		{words: "status a", answer: down, out: "a down\n", code: 3},
		{words: "start a --no-wait", answer: "202 Accepted\r\nContent-Length: 5\r\n\r\na up\n", out: "a up\n"},
		{words: "stop a --no-wait", answer: down, out: "a down\n"},
		{words: "status", answer: up, env: "HINIT_CONFIG=/x", out: "a up\n"},
		{words: "restart a --no-wait", answer: up, code: runtime}, // a lost answer must not restart it twice
		{words: "stop a", answer: up, code: runtime},
		{words: "healthcheck", answer: up, code: runtime},
		{words: "status --json", answer: up, code: runtime},
		{words: "status b", answer: "404 Not Found\r\nHinit-Error: unknown\r\nContent-Length: 2\r\n\r\nno", code: runtime},
		{words: "status", answer: "200 OK\r\nHinit-Down: 0\r\nContent-Length: 9\r\n\r\na up\n", code: runtime},
		{words: "status", answer: "", code: runtime},
		{words: "status" + strings.Repeat(" a", 2000), answer: up, code: runtime}, // a request of this length was sent without its end, so the answer took 5 s
		{words: "status", answer: up, env: "HINIT_RUNTIME_DIR=/nowhere", code: runtime},
	} {
		asked := serve(t, dir, tt.answer)
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hinit"), strings.Fields(tt.words)...)
		cmd.Env = []string{"GOMEMLIMIT=no number", "HINIT_RUNTIME_DIR=" + dir, tt.env}
		out, _ := cmd.Output() // the exit code says the same as the error
		if code := cmd.ProcessState.ExitCode(); code != tt.code || code != runtime && string(out) != tt.out {
			t.Errorf("hinit %s: exit code %d with %q, want %d with %q; the answer was %q", tt.words, code, out, tt.code, tt.out, tt.answer)
		}
		asked.Close()
	}
}

// s6-svc -u and -d must get their answer before the Go runtime starts. GOMEMLIMIT is invalid, so a start of the runtime shows
// as exit code 2. Signals (-t) and all other answers are left to the Go code, so that no signal is sent twice.
func TestAnS6OrderIsAnsweredWithoutTheRuntime(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := t.TempDir()
	if err := errors.Join(testkit.Build(dir, "hinit"), os.Symlink("hinit", dir+"/s6-svc")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		words, answer string
		code          int
	}{
		{"-d /run/service/a", "204 No Content\r\n\r\n", 0},
		{"-u /run/service/a", "204 No Content\r\n\r\n", 0},
		{"-t /run/service/a", "204 No Content\r\n\r\n", 2},
		{"-d /run/service/a", "404 Not Found\r\nContent-Length: 2\r\n\r\nno", 2},
		{"-d run/service/a", "204 No Content\r\n\r\n", 2},
	} {
		asked := serve(t, dir, tt.answer)
		cmd := exec.CommandContext(t.Context(), dir+"/s6-svc", strings.Fields(tt.words)...)
		cmd.Env = []string{"GOMEMLIMIT=no number", "HINIT_RUNTIME_DIR=" + dir}
		if _ = cmd.Run(); cmd.ProcessState.ExitCode() != tt.code {
			t.Errorf("s6-svc %s: %v, want %d; the answer was %q", tt.words, cmd.ProcessState, tt.code, tt.answer)
		}
		asked.Close()
	}
}

// A command with closed standard descriptors must write only requests to the socket. The socket must not get the number of a
// closed descriptor: the output would go to the init, and SIGPIPE would end the command. Without hinit-tools, a status that
// can't be written must be a failure.
func TestACommandWithAClosedOutputWritesNothingToTheInit(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := t.TempDir()
	if err := testkit.Build(dir, "hinit", "hinit-tools"); err != nil {
		t.Fatal(err)
	}
	const answer = "200 OK\r\nHinit-Down: 0\r\nContent-Length: 5\r\n\r\na up\n"
	for _, tt := range []struct {
		words, answer, out string
		code               int
	}{
		{words: "status >&-", answer: answer, code: 2}, // the Go runtime reports that it cannot write
		{words: "status 2>&-", answer: answer, out: "a up\n"},
		{words: "status b 2>&-", answer: "404 Not Found\r\nContent-Length: 2\r\n\r\nno", code: 2},
		{words: "status <&-", answer: answer, out: "a up\n"},
		{words: "status <&- 2>&-", answer: answer, out: "a up\n"},
		{words: "alone status", answer: answer, out: "a up\n"},
		{words: "alone status >&-", answer: answer, code: 1},
		{words: "alone start a <&- >&- 2>&-", answer: answer, code: 1},
		{words: "alone stop b 2>&-", answer: "404 Not Found\r\nHinit-Error: unknown\r\nContent-Length: 2\r\n\r\nno", code: 6},
		{words: "alone status", answer: "200 OK\r\nHinit-Down: 0\r\nContent-Length: 9\r\n\r\na up\n", out: "a up\n", code: 1}, // the answer is cut off
	} {
		words, alone := strings.CutPrefix(tt.words, "alone ")
		if alone { // an image without hinit-tools
			if err := os.Remove(dir + "/hinit-tools"); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
		}
		asked := serve(t, dir, tt.answer)
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "exec "+dir+"/hinit "+words)
		cmd.Env = []string{"GOMEMLIMIT=no number", "HINIT_RUNTIME_DIR=" + dir}
		out, _ := cmd.Output()
		asked.Close()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || string(out) != tt.out {
			t.Errorf("hinit %s: exit code %d with %q, want %d with %q", tt.words, code, out, tt.code, tt.out)
		}
	}
}

// A status for a full, non-blocking pipe must be written once, not in part and then again by the Go runtime.
func TestAStatusForAFullPipeIsWrittenOnce(t *testing.T) {
	testkit.SkipIfShort(t)
	dir := t.TempDir()
	if err := testkit.Build(dir, "hinit"); err != nil {
		t.Fatal(err)
	}
	table := strings.Repeat("a service of many that are up\n", 6000)
	defer serve(t, dir, "200 OK\r\nHinit-Down: 0\r\nContent-Length: "+strconv.Itoa(len(table))+"\r\n\r\n"+table).Close()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	read, write := os.NewFile(uintptr(ends[0]), "read"), os.NewFile(uintptr(ends[1]), "write")
	defer read.Close()
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "hinit"), "status")
	cmd.Env, cmd.Stdout = []string{"GOMEMLIMIT=no number", "HINIT_RUNTIME_DIR=" + dir}, write
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "the pipe to be full", func() bool {
		n, err := unix.IoctlGetInt(ends[0], unix.TIOCINQ)
		return err == nil && n >= 1<<16
	})
	out, err := io.ReadAll(read)
	if err = errors.Join(err, cmd.Wait()); err != nil || string(out) != table {
		t.Errorf("%v; %d bytes, want %d", err, len(out), len(table))
	}
}

// The containers of a pod may share /run/hinit and the PID namespace. Then the Go runtime must carry out a command, because
// package dial refuses to give an order to the init of another container.
func TestACommandInAPodIsLeftToTheRuntime(t *testing.T) {
	testkit.SkipIfShort(t)
	testkit.NeedRoot(t)
	dir := t.TempDir()
	if err := errors.Join(testkit.Build(dir, "hinit"), os.MkdirAll(dir+"/run/hinit", 0o755)); err != nil {
		t.Fatal(err)
	}
	defer serve(t, dir+"/run/hinit", "200 OK\r\nHinit-Down: 0\r\nContent-Length: 5\r\n\r\na up\n").Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "mount --bind "+dir+"/run /run && exec "+dir+"/hinit status")
	cmd.Env = []string{"GOMEMLIMIT=no number", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 2 {
		t.Errorf("%v: %s", cmd.ProcessState, out)
	}
}

// serve listens on the control socket in dir, and gives each request this answer.
func serve(t *testing.T, dir, answer string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(dir, "control.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 4096)
			_, _ = c.Read(request)
			_, _ = c.Write([]byte("HTTP/1.1 " + answer))
			_ = c.Close()
		}
	}()
	return l
}
