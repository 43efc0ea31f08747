package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/profiles"
)

var eventsVerb = cli.Verb{
	Name: "events", Doing: "show the events", JSON: "print one JSON object a line", Services: true, Args: "[NAME...] [--state STATE] [-f] [--json] [-n N] [--since D|TIME]",
	Summary: "print what has happened: starts, exits with their causes, stops",
	Help:    "\"by uid 0 (sh, exec)\" names the giver of an order: user, program, and way (exec: from outside the\ncontainer, api: from inside, s6: the tools of s6, fifo).",
	Run:     events,
}

func events(t *cli.Terminal, c *cli.Call) int {
	follow := c.Flags.Bool("f", false, "follow: go on printing")
	n := c.Flags.Int("n", 50, "the last `N` events, -1 for all that are kept")
	since := sinceFlag(c)
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	cl, err := t.Dial()
	if err != nil {
		return t.Failed("show events", err)
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	var past []client.Event
	o := client.EventOptions{Last: -1, Follow: true} // without past events to continue from, follow from now on
	err = cl.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		past, o = append(past, e), client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		return nil
	})
	var named map[string]bool
	if err == nil {
		named, err = eventNames(ctx, cl, names, past)
	}
	if err != nil {
		return t.Failed("show events", err)
	}
	others := func(e client.Event) bool { // matches the events of services that the user did not ask for
		return e.Lost == 0 && (len(named) > 0 && !named[e.Service] || e.At.Before(since.Time))
	}
	past = slices.DeleteFunc(past, others)
	if *n >= 0 && (since.IsZero() || cli.FlagGiven(c, "n")) {
		past = past[max(0, len(past)-*n):]
	}
	show := func(e client.Event) error {
		o = client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		if others(e) {
			return nil
		}
		if c.JSON {
			return cli.WriteJSONLine(t.Out, e)
		}
		_, err := fmt.Fprintln(t.Out, show.Line(eventLine(e)))
		return err
	}
	for _, e := range past {
		err = cmp.Or(err, show(e))
	}
	for first := true; *follow && ctx.Err() == nil && (err == nil || errors.Is(err, client.ErrUnreachable)); first = false {
		// The connection has ended. If hinit was re-executed, its events continue on a new connection.
		if h, gone := cl.Health(ctx); !first && (gone != nil || !h.OK && !h.Booting) {
			break
		}
		err = cl.Events(ctx, o, show)
	}
	if err != nil && ctx.Err() == nil {
		return t.Failed("show events", err)
	}
	return cmdline.Done
}

// eventNames returns the service names for the names that the user gave. A name that the status does not know may be a removed
// service or profile, so eventNames searches the past events for it.
func eventNames(ctx context.Context, cl *dial.Client, names []string, past []client.Event) (map[string]bool, error) {
	named := make(map[string]bool)
	for _, name := range names {
		st, err := cl.Status(ctx, name)
		if err == nil {
			named[st.Services[0].Name] = true
			continue
		}
		known := slices.IndexFunc(past, func(e client.Event) bool { return e.Service == name || e.Service == profiles.SlotName(name) })
		if !errors.Is(err, client.ErrUnknown) || known < 0 {
			return nil, err
		}
		named[past[known].Service] = true
	}
	return named, nil
}
