// Package pty opens pseudoterminals, and connects a terminal to one. A command with its own pseudoterminal can't type on the
// terminal of its caller. Relay owns three goroutines, which end when the command's side is closed, or with the process.
package pty

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Open makes a pseudoterminal. far is the terminal of a command; close it after the command was started. near is the side
// that the caller reads and writes.
func Open() (near, far *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	near = os.NewFile(uintptr(fd), "/dev/ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	name := "/dev/pts/" + strconv.Itoa(n)
	other, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		near.Close()
		return nil, nil, fmt.Errorf("cannot open the terminal %s: %w", name, err)
	}
	return near, os.NewFile(uintptr(other), name), nil
}

// Resize sets the window size of a pseudoterminal, given its near side.
func Resize(near *os.File, columns, rows uint16) {
	raw, err := near.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
}

// MakeRaw puts a terminal into raw mode, in which the terminal passes on every key. restore ends that. The error means that the
// file is no terminal.
func MakeRaw(terminal *os.File) (restore func(), err error) {
	fd := int(terminal.Fd())
	before, err := term.MakeRaw(fd)
	return func() { _ = term.Restore(fd, before) }, err // the terminal may be closed by then
}

// Size returns the size of a terminal; 80 by 24 if it is unknown.
func Size(terminal *os.File) (columns, rows uint16) {
	w, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 24
	}
	return w.Col, w.Row
}

// OnResize calls f with the new size after each change of a terminal's size, until the call of stop. f runs in another
// goroutine.
func OnResize(terminal *os.File, f func(columns, rows uint16)) (stop func()) {
	resized, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(resized, syscall.SIGWINCH)
	go func() {
		for {
			select {
			case <-resized:
				f(Size(terminal))
			case <-done:
				return
			}
		}
	}()
	return func() {
		signal.Stop(resized)
		close(done)
	}
}

// Relay copies between a terminal (in and out) and the near side of a pseudoterminal. It blocks until the far side is closed.
func Relay(in *os.File, out io.Writer, near *os.File) error {
	restore, err := MakeRaw(in)
	if err != nil {
		return err
	}
	defer restore()
	resize := func(columns, rows uint16) { Resize(near, columns, rows) }
	defer OnResize(in, resize)() // watch for changes before reading the first size, so that none is lost
	resize(Size(in))
	go func() { _, _ = io.Copy(near, in) }() // nothing interrupts its read, so this goroutine ends with the process
	_, err = io.Copy(out, near)
	if errors.Is(err, unix.EIO) { // the far side was closed
		return nil
	}
	return err
}
