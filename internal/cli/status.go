package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func statusVerb() verb {
	return verb{
		name: "status", doing: "show the status", args: "[NAME...] [--json] [--watch] [-v]",
		summary: "tell what runs, since when, and why something does not",
		help: "With names, the exit code is 3 when one of them is not up. On a terminal the table is as wide as that, and states have\n" +
			"colours unless NO_COLOR is set.",
		run: status,
	}
}

func status(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	watch := c.flags.Bool("watch", false, "print again whenever something changes, until Ctrl-C")
	verbose := c.flags.Bool("v", false, "how long the boot took too")
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
		ctx, cancel = cmdline.Interruptible()
	}
	defer cancel()
	down, err := t.showStatus(ctx, cl, names, *asJSON, *watch, *verbose)
	for *watch && err == nil { // again when hinit has become another image of itself
		err = cl.Watch(ctx, func(client.StatusChange) error {
			down, err = t.showStatus(ctx, cl, names, *asJSON, *watch, *verbose) // the line has no memory of what did not change
			return err
		})
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
func (t *terminal) showStatus(ctx context.Context, cl *client.Client, names []string, asJSON, watch, verbose bool) (down int, err error) {
	if !asJSON {
		table, down, err := cl.StatusTable(ctx, t.look(verbose), names...)
		if err != nil {
			return 0, err
		}
		if watch && t.screen {
			fmt.Fprint(t.raw(), "\x1b[H\x1b[2J")
		}
		return down, t.writeTable(table)
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
		return down, jsonLineTo(t.out, st)
	}
	return down, writeJSON(t.out, st)
}

// look is how a table has to look here.
func (t *terminal) look(verbose bool) client.Look {
	look := client.Look{Verbose: verbose}
	if !t.screen {
		return look
	}
	if size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil {
		look.Width = int(size.Col)
	}
	none, _ := t.env("NO_COLOR")
	kind, _ := t.env("TERM")
	look.Colour = none == "" && kind != "dumb"
	return look
}

// writeTable prints a table with its colours, and nothing else that a terminal would obey.
func (t *terminal) writeTable(table []byte) error {
	var b bytes.Buffer
	for line := range bytes.Lines(table) {
		b.WriteString(show.Output(string(bytes.TrimSuffix(line, []byte("\n")))) + "\n")
	}
	_, err := t.raw().Write(b.Bytes())
	return err
}

// writeJSON writes a document for programs, which is safe to look at on a terminal.
func writeJSON(w io.Writer, v any) error { return encodeJSON(w, v, "  ") }

// jsonLineTo writes one document of a stream, a line.
func jsonLineTo(w io.Writer, v any) error { return encodeJSON(w, v, "") }

func encodeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(show.JSON(b.Bytes()))
	return err
}
