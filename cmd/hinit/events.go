package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"hinit/client"
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
	err = cl.Events(ctx, client.EventOptions{Last: last, Follow: *follow}, func(e client.Event) error {
		if *asJSON {
			return enc.Encode(e)
		}
		_, err := fmt.Fprintln(t.out, printable(eventLine(e)))
		return err
	})
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
		return fmt.Sprintf("ended by %s after %s (%s)", signalName(*x.Signal), seconds(x.UptimeSeconds), x.Cause)
	case x.Code != nil:
		return fmt.Sprintf("exited with code %d after %s (%s)", *x.Code, seconds(x.UptimeSeconds), x.Cause)
	}
	return x.Cause
}
