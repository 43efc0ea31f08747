package main

import (
	"os"

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
	size := func(columns, rows uint16) sandbox.Size { return sandbox.Size{Columns: columns, Rows: rows} }
	req.TTY, req.Size = true, size(pty.Size(os.Stdin))
	resizes := make(chan sandbox.Size, 1)
	local.Resizes = resizes
	defer pty.OnResize(os.Stdin, func(columns, rows uint16) {
		select {
		case <-resizes: // an older one that nothing has taken yet
		default:
		}
		resizes <- size(columns, rows)
	})()
	ctx, caught := interruptible()
	return caught(where(ctx, req, local))
}
