package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInfoTellsWhatTheProcessWasGiven(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	cmd := newAgentCmd(home, []string{"MARK=a=b"}, []string{"agent-info", "--json"})
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got info
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if got.PID != pid || got.PGID != pid || got.SID != pid || got.PPID != os.Getpid() {
		t.Errorf("ids: %+v", got)
	}
	if got.UID != os.Getuid() || got.GID != os.Getgid() || got.EUID != os.Geteuid() || got.EGID != os.Getegid() {
		t.Errorf("credentials: %+v", got)
	}
	if groups, err := os.Getgroups(); err != nil || got.Groups == nil || !slices.Equal(groups, got.Groups) {
		t.Errorf("groups %v, want %v", got.Groups, groups)
	}
	if !reflect.DeepEqual(got.Argv, cmd.Args) || got.Cwd != dir || got.TTY.Stdin || got.Profile != "default" {
		t.Errorf("argv, cwd, tty or profile: %+v", got)
	}
	want := map[string]string{}
	for _, pair := range cmd.Environ() {
		key, value, _ := strings.Cut(pair, "=")
		want[key] = value
	}
	if !reflect.DeepEqual(got.Env, want) || got.Env["MARK"] != "a=b" {
		t.Errorf("env %v, want %v", got.Env, want)
	}
}

// terminalPair is a pseudo-terminal, with everything that was printed on it.
type terminalPair struct {
	master, slave *os.File
	mutex         sync.Mutex
	printed       bytes.Buffer
}

func openTerminal(t *testing.T) *terminalPair {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	var number int
	raw, err := master.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err != nil {
				return
			}
			if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err != nil {
				return
			}
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 33, Col: 123})
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	pair := &terminalPair{master: master, slave: slave}
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(pair, master)
	}()
	t.Cleanup(func() {
		slave.Close()
		master.Close()
		<-read
	})
	return pair
}

func (p *terminalPair) Write(data []byte) (int, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.printed.Write(data)
}

func (p *terminalPair) text() string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.printed.String()
}

// startOnTerminal starts the agent as the leader of a session with the terminal as its own, as an init does for docker run -t.
func startOnTerminal(t *testing.T, args ...string) (*terminalPair, *gatewayProc) {
	t.Helper()
	pair := openTerminal(t)
	cmd := newAgentCmd(t.TempDir(), nil, args)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pair.slave, pair.slave, pair.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	return pair, &gatewayProc{t: t, cmd: cmd}
}

func TestInfoOnATerminal(t *testing.T) {
	pair, proc := startOnTerminal(t, "agent-info", "--json")
	if code := proc.wait(); code != 0 {
		t.Fatalf("exit code %d: %s", code, pair.text())
	}
	var got info
	eventually(t, "the answer is complete", func() bool { return json.Unmarshal([]byte(pair.text()), &got) == nil })
	if want := (tty{Stdin: true, Stdout: true, Stderr: true, Columns: 123, Rows: 33, Foreground: true}); got.TTY != want {
		t.Errorf("tty %+v, want %+v", got.TTY, want)
	}
}

func TestPromptOnATerminal(t *testing.T) {
	for name, end := range map[string]string{"exit": "exit\n", "end of file": "\x04", "Ctrl-C": "\x03"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pair, proc := startOnTerminal(t)
			pair.master.WriteString("hello\n")
			eventually(t, "it answers", func() bool { return strings.Contains(pair.text(), "echo: hello\r\n> ") })
			pair.master.WriteString(end)
			if code := proc.wait(); code != 0 {
				t.Errorf("exit code %d: %q", code, pair.text())
			}
		})
	}
}
