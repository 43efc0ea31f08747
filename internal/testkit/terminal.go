package testkit

import (
	"errors"
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

// OpenTerminal makes a pseudo-terminal. far is the terminal of the program under test. Writing to near is like typing on far,
// and reading from near returns its output. When no process has far open any more, reading returns EIO. The caller closes both.
func OpenTerminal(rows, columns uint16) (near, far *os.File, err error) {
	near, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	var number int
	err = withDescriptor(near, func(fd int) (err error) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
		return err
	})
	if err == nil {
		err = ResizeTerminal(near, rows, columns)
	}
	if err == nil {
		far, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}

// ResizeTerminal changes the size of a pseudo-terminal.
func ResizeTerminal(near *os.File, rows, columns uint16) error {
	return withDescriptor(near, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	})
}

// withDescriptor calls do with the descriptor of a file. It avoids File.Fd, which would make the descriptor blocking.
func withDescriptor(f *os.File, do func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = c.Control(func(fd uintptr) { failed = do(int(fd)) })
	return errors.Join(err, failed)
}

// Terminal is a pseudo-terminal with a program on it. A goroutine reads the output until the program has ended.
type Terminal struct {
	t      testing.TB
	master *os.File
	cmd    *exec.Cmd

	mu   sync.Mutex
	text strings.Builder
}

// StartOnTerminal starts a program in a new session, with a terminal of the given size as its standard streams.
func StartOnTerminal(t testing.TB, rows, columns uint16, cmd *exec.Cmd) *Terminal {
	t.Helper()
	near, far, err := OpenTerminal(rows, columns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	defer far.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = far, far, far
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	term := &Terminal{t: t, master: near, cmd: cmd}
	go term.read()
	return term
}

func (term *Terminal) read() {
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.text.Write(buf[:n])
		term.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Resize changes the terminal's size.
func (term *Terminal) Resize(rows, columns uint16) {
	term.t.Helper()
	if err := ResizeTerminal(term.master, rows, columns); err != nil {
		term.t.Fatal(err)
	}
}

// Type types s on the terminal.
func (term *Terminal) Type(s string) {
	term.t.Helper()
	if _, err := term.master.WriteString(s); err != nil {
		term.t.Fatal(err)
	}
}

// Text returns all output so far.
func (term *Terminal) Text() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.text.String()
}

// AwaitText waits until the output contains a text. It fails the test after [Patience].
func (term *Terminal) AwaitText(text string) {
	term.t.Helper()
	for end := time.Now().Add(Patience); !strings.Contains(term.Text(), text); <-time.After(2 * time.Millisecond) {
		if time.Now().After(end) {
			term.t.Fatalf("not within %v: %q on the terminal, which shows %q", Patience, text, term.Text())
		}
	}
}

// ExitCode waits for the end of the program and returns its exit code. It kills the program after [Patience].
func (term *Terminal) ExitCode() int {
	giveUp := time.AfterFunc(Patience, func() { _ = term.cmd.Process.Kill() })
	defer giveUp.Stop()
	_ = term.cmd.Wait() // the exit code below shows the end of the program
	return term.cmd.ProcessState.ExitCode()
}
