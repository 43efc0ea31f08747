package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"hinit/internal/cmdline"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// onTerminal runs a request whose command has this terminal, if standard input is one.
func onTerminal(req daemon.Request, local daemon.Streams) int {
	fd := int(os.Stdin.Fd())
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		ctx, caught := interruptible()
		return caught(where(ctx, req, local))
	}
	raw := *before
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return cmdline.Failed
	}
	defer unix.IoctlSetTermios(fd, unix.TCSETS, before) //nolint:errcheck // the terminal has gone, then
	req.TTY, req.Size = true, sizeOf(fd)
	resizes := make(chan sandbox.Size, 1)
	local.Resizes = resizes
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	ctx, caught := interruptible()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			select {
			case <-changed:
				select {
				case resizes <- sizeOf(fd):
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return caught(where(ctx, req, local))
}

func sizeOf(fd int) sandbox.Size {
	w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return sandbox.Size{Columns: 80, Rows: 24}
	}
	return sandbox.Size{Columns: w.Col, Rows: w.Row}
}
