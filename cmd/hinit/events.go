package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"hinit/client"
	"hinit/internal/control/show"
)

func eventsVerb() verb {
	return verb{
		name: "events", args: "[-f] [--json] [-n N]", summary: "print what has happened: starts, exits with their causes, stops",
		run: events,
	}
}

func events(t *terminal, c *call) int {
	follow := c.flags.Bool("f", false, "follow: go on printing")
	asJSON := c.flags.Bool("json", false, "print one JSON object a line")
	n := c.flags.Int("n", 50, "the last `N` events, -1 for all that are kept")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	cl, err := t.dial()
	if err != nil {
		return t.failed("show events", err)
	}
	ctx, cancel := interruptible()
	defer cancel()
	enc := json.NewEncoder(t.out)
	enc.SetEscapeHTML(false)
	last := *n
	switch {
	case last < 0:
		last = 0 // all
	case last == 0:
		last = -1 // none of the past
	}
	o := client.EventOptions{Last: last, Follow: *follow}
	show := func(e client.Event) error {
		o = client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		if *asJSON {
			return enc.Encode(e)
		}
		_, err := fmt.Fprintln(t.out, printable(eventLine(e)))
		return err
	}
	err = cl.Events(ctx, o, show)
	for *follow && ctx.Err() == nil && (err == nil || errors.Is(err, client.ErrUnreachable)) {
		// hinit ends, or it has become another image of itself, where the events go on.
		if h, gone := cl.Health(ctx); gone != nil || !h.OK {
			break
		}
		if o.Since == 0 {
			o.Last = -1 // nothing of the past was wanted, and nothing has happened since
		}
		err = cl.Events(ctx, o, show)
	}
	if err != nil && ctx.Err() == nil {
		return t.failed("show events", err)
	}
	return exitDone
}

func eventLine(e client.Event) string {
	if e.Lost > 0 {
		return fmt.Sprintf("(%d older events are lost)", e.Lost)
	}
	name := e.Service
	if name == "" {
		name = "container"
	}
	b := &strings.Builder{}
	fmt.Fprintf(b, "%s  %s: ", e.At.Local().Format("2006-01-02 15:04:05.000"), name)
	switch {
	case e.Exit != nil:
		fmt.Fprint(b, eventExit(e.Exit))
	case e.From != e.To:
		fmt.Fprintf(b, "%s → %s (%s)", e.From, e.To, e.Reason)
	default:
		b.WriteString(e.Reason)
	}
	if e.PID != 0 {
		fmt.Fprintf(b, " [pid %d]", e.PID)
	}
	return b.String()
}

func eventExit(x *client.Exit) string {
	switch {
	case x.Cause == "spawn":
		return x.Error
	case x.Signal != nil:
		return fmt.Sprintf("ended by %s after %s (%s)", show.Signal(*x.Signal), show.Seconds(x.UptimeSeconds), x.Cause)
	case x.Code != nil:
		return fmt.Sprintf("exited with code %d after %s (%s)", *x.Code, show.Seconds(x.UptimeSeconds), x.Cause)
	}
	return x.Cause
}
