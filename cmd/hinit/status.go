package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"hinit/client"
)

func statusVerb() verb {
	return verb{
		name: "status", args: "[NAME...] [--json] [--watch]",
		summary: "tell what runs, since when, and why something does not",
		help:    "With names, the exit code is 3 when one of them is not up.",
		run:     status,
	}
}

func status(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	watch := c.flags.Bool("watch", false, "print again whenever something changes, until Ctrl-C")
	names, code, ok := c.parse(t, 0, -1)
	if !ok {
		return code
	}
	cl, err := t.dial()
	if err != nil {
		return t.failed("show the status", err)
	}
	ctx, cancel := context.Background(), func() {}
	if *watch { // what ends by itself may end by a signal too
		ctx, cancel = interruptible()
	}
	defer cancel()
	down, err := t.showStatus(ctx, cl, names, *asJSON, *watch)
	for *watch && err == nil {
		if waitForChange(ctx, cl) != nil {
			break
		}
		down, err = t.showStatus(ctx, cl, names, *asJSON, *watch)
	}
	switch {
	case ctx.Err() != nil:
		return exitDone
	case err != nil:
		return t.failed("show the status", err)
	case len(names) > 0 && down > 0:
		return exitNotUp
	}
	return exitDone
}

// showStatus prints the status once and returns how many services in it are not up.
func (t *terminal) showStatus(ctx context.Context, cl *client.Client, names []string, asJSON, watch bool) (down int, err error) {
	if !asJSON {
		table, down, err := cl.StatusTable(ctx, names...)
		if err != nil {
			return 0, err
		}
		if watch && t.screen {
			fmt.Fprint(t.out, "\x1b[H\x1b[2J")
		}
		_, err = t.out.Write(table)
		return down, err
	}
	st, err := cl.Status(ctx, names...)
	if err != nil {
		return 0, err
	}
	for _, s := range st.Services {
		if s.State != "up" {
			down++
		}
	}
	if watch { // a stream has one document a line
		return down, json.NewEncoder(t.out).Encode(st)
	}
	return down, writeJSON(t.out, st)
}

// waitForChange returns after the next event, at the latest after a second, so that ages stay true.
func waitForChange(ctx context.Context, cl *client.Client) error {
	wait, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	seen := fmt.Errorf("seen")
	_ = cl.Events(wait, client.EventOptions{Last: -1, Follow: true}, func(client.Event) error { return seen })
	return ctx.Err()
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
