package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is a pseudoterminal with a program on it.
type terminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu   sync.Mutex
	text strings.Builder
}

// onTerminal starts a program on a terminal of the given size.
func onTerminal(t *testing.T, rows, columns uint16, argv ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	term := &terminal{t: t, master: master}
	term.resize(rows, columns)
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	term.cmd = exec.Command(argv[0], argv[1:]...)
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends when the program has, or the master is closed
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.text.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (term *terminal) resize(rows, columns uint16) {
	term.t.Helper()
	if err := unix.IoctlSetWinsize(int(term.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
		term.t.Fatal(err)
	}
}

// keys types.
func (term *terminal) keys(s string) {
	term.t.Helper()
	if _, err := term.master.WriteString(s); err != nil {
		term.t.Fatal(err)
	}
}

// await waits until the screen has a text.
func (term *terminal) await(text string) {
	term.t.Helper()
	eventually(term.t, settle, func() error { return term.has(text) })
}

func (term *terminal) has(text string) error {
	term.mu.Lock()
	defer term.mu.Unlock()
	if screen := term.text.String(); !strings.Contains(screen, text) {
		return fmt.Errorf("no %q on the terminal: %q", text, screen)
	}
	return nil
}

// code waits for the end of the program.
func (term *terminal) code() int {
	giveUp := time.AfterFunc(patience, func() { _ = term.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = term.cmd.Wait()
	return term.cmd.ProcessState.ExitCode()
}

// TestTerminal has a shell as the command of docker run -it: it owns the terminal, knows its size and that it changes,
// Ctrl-C reaches what runs in the foreground and nothing else.
func TestTerminal(t *testing.T) {
	parallel(t)
	name := "hinit-e2e-" + runID + "-tty"
	t.Cleanup(func() { docker("rm", "-fv", name) })
	term := onTerminal(t, 33, 101, "docker", "run", "-it", "--name", name, "--label", runLabel, need(t), "sh")
	term.keys("PS1='# '; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is' 'a' 'tty\n")
	term.await("is a tty")
	// The client tells the engine the size only after the start, and listens to changes only after that: it may miss some.
	term.keys("while [ \"$(stty size 2>/dev/null)\" != '33 101' ]; do usleep 50000; done; echo size' 'is' 'shown\n")
	term.await("size is shown")
	term.keys("while [ \"$(stty size)\" != '44 122' ]; do usleep 50000; done; echo size' 'has' 'changed\n")
	eventually(t, settle, func() error {
		term.resize(44, 121)
		term.resize(44, 122)
		return term.has("size has changed")
	})
	term.keys("sh -c \"echo now' 'asleep; exec sleep 1000\"\n") // said by what is in the foreground by then
	term.await("now asleep")
	term.keys("\x03")
	term.keys("echo shell' 'lives\n")
	term.await("shell lives")
	term.keys("exit 7\n")
	if code := term.code(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

// TestTerminalWithoutInput is docker run -t, whose terminal nobody types on.
func TestTerminalWithoutInput(t *testing.T) {
	parallel(t)
	r := runOnce(t, []string{"-t"}, "sh", "-c", "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo is a tty >/dev/tty")
	if r.code != 0 || !strings.Contains(r.out, "is a tty") {
		t.Error(r)
	}
	if r := runOnce(t, []string{"-t"}, "--help"); r.code != 0 || !strings.Contains(r.out, "usage:") {
		t.Error(r)
	}
}

// TestCtrlCEndsCommand sends Ctrl-C to a command that does not handle it.
func TestCtrlCEndsCommand(t *testing.T) {
	parallel(t)
	name := "hinit-e2e-" + runID + "-ctrl-c"
	t.Cleanup(func() { docker("rm", "-fv", name) })
	term := onTerminal(t, 24, 80, "docker", "run", "-it", "--name", name, "--label", runLabel, need(t),
		"sh", "-c", "echo the CMD is there; exec sleep 1000")
	term.await("the CMD is there")
	term.keys("\x03")
	if code := term.code(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
}
