package pty_test

import (
	"bufio"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"hinit/internal/pty"
	"hinit/internal/testkit"
)

// ptyPair is a pseudo terminal. shown contains the output that a person at the terminal sees.
type ptyPair struct {
	master, slave *os.File
	output        *bufio.Reader
}

func openPair(t *testing.T) ptyPair {
	t.Helper()
	near, far, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return ptyPair{near, far, bufio.NewReader(near)}
}

func termios(t *testing.T, terminal *os.File) unix.Termios {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *state
}

// Typed input must arrive once, and a new size must be passed on. At the end, the caller's terminal must have its old settings.
func TestARelayedTerminalIsOneAndGivesTheCallersBack(t *testing.T) {
	caller, command := openPair(t), openPair(t)
	pty.Resize(caller.master, 90, 33)
	before := termios(t, caller.slave)
	ended := make(chan error, 1)
	go func() { ended <- pty.Relay(caller.slave, caller.slave, command.master) }()
	size := func(columns, rows uint16) func() bool {
		return func() bool { c, r := pty.Size(command.slave); return c == columns && r == rows }
	}
	testkit.Until(t, "the command's terminal has the caller's size", size(90, 33))
	if got := termios(t, caller.slave).Lflag & (unix.ECHO | unix.ISIG | unix.ICANON); got != 0 {
		t.Errorf("the caller's terminal is not raw: %x", got)
	}
	pty.Resize(caller.master, 120, 40)
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "a new size is passed on", size(120, 40))

	if _, err := io.WriteString(caller.master, "typed\r"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(command.slave).ReadString('\n'); err != nil || line != "typed\n" {
		t.Errorf("the command reads %q (%v)", line, err)
	}
	if line, err := caller.output.ReadString('\n'); err != nil || line != "typed\r\n" { // the command's terminal echoes the input
		t.Errorf("the caller sees %q (%v)", line, err)
	}
	if _, err := io.WriteString(command.slave, "answer \x1b[1mbold\x1b[m\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := caller.output.ReadString('\n'); err != nil || line != "answer \x1b[1mbold\x1b[m\r\n" {
		t.Errorf("the caller sees %q (%v)", line, err)
	}
	if err := command.slave.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the end of the command is an error: %v", err)
	}
	if after := termios(t, caller.slave); after != before {
		t.Errorf("the caller's terminal is %+v, and was %+v", after, before)
	}
}

func TestAFileIsNoTerminal(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := pty.Relay(file, &strings.Builder{}, file); err == nil {
		t.Error("a file was relayed")
	}
	if columns, rows := pty.Size(file); columns != 80 || rows != 24 {
		t.Errorf("%d by %d", columns, rows)
	}
}
