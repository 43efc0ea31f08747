package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"hinit/internal/pty"
	"hinit/sandbox"
	"hinit/sandbox/daemon"
)

// onTerminal runs a request whose command has this terminal, if standard input is one.
func onTerminal(req daemon.Request, local daemon.Streams) int {
	restore, err := pty.Raw(os.Stdin)
	if err != nil {
		ctx, caught := interruptible()
		return caught(where(ctx, req, local))
	}
	defer restore()
	req.TTY, req.Size = true, size()
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
				case resizes <- size():
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

func size() sandbox.Size {
	columns, rows := pty.Size(os.Stdin)
	return sandbox.Size{Columns: columns, Rows: rows}
}
