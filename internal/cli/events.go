package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/profiles"
	"hinit/supervisor"
)

func eventsVerb() verb {
	return verb{
		name: "events", doing: "show the events", args: "[NAME...] [-f] [--json] [-n N] [--since D|TIME]",
		summary: "print what has happened: starts, exits with their causes, stops",
		help:    "Of everything, or of the named profiles and services.\n\"by uid 0 (sh, exec)\" says who gave an order: the user, what the program calls itself, and the way\n(exec: from outside the container, api: from inside, s6: the tools of s6, fifo).\n--since takes 10m, 15:04, 2006-01-02, 2006-01-02T15:04:05 or RFC 3339.",
		run:     events,
	}
}

func events(t *terminal, c *call) int {
	follow := c.flags.Bool("f", false, "follow: go on printing")
	asJSON := c.flags.Bool("json", false, "print one JSON object a line")
	n := c.flags.Int("n", 50, "the last `N` events, -1 for all that are kept")
	since := sinceFlag(c)
	names, code, ok := c.parse(t, 0, -1)
	if !ok {
		return code
	}
	cl, err := t.dial()
	if err != nil {
		return t.failed("show events", err)
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	var past []client.Event
	o := client.EventOptions{Last: -1, Follow: true} // of what follows
	err = cl.Events(ctx, client.EventOptions{}, func(e client.Event) error {
		past, o = append(past, e), client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		return nil
	})
	var named map[string]bool
	if err == nil {
		named, err = eventNames(ctx, cl, names, past)
	}
	if err != nil {
		return t.failed("show events", err)
	}
	others := func(e client.Event) bool { return e.Lost == 0 && !wanted(e, named, since.Time) }
	past = slices.DeleteFunc(past, others)
	if *n >= 0 && (since.IsZero() || flagGiven(c, "n")) {
		past = past[max(0, len(past)-*n):]
	}
	show := func(e client.Event) error {
		o = client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		if others(e) {
			return nil
		}
		if *asJSON {
			return jsonLineTo(t.out, e)
		}
		_, err := fmt.Fprintln(t.out, show.Line(eventLine(e)))
		return err
	}
	for _, e := range past {
		err = cmp.Or(err, show(e))
	}
	for first := true; *follow && ctx.Err() == nil && (err == nil || errors.Is(err, client.ErrUnreachable)); first = false {
		// hinit ends, or it has become another image of itself, where the events go on.
		if h, gone := cl.Health(ctx); !first && (gone != nil || !h.OK && !h.Booting) {
			break
		}
		err = cl.Events(ctx, o, show)
	}
	if err != nil && ctx.Err() == nil {
		return t.failed("show events", err)
	}
	return exitDone
}

// eventNames are the names that events have of what was named. A service that is gone has events too, so an unknown name is taken as it
// is, and as the profile of a gateway.
func eventNames(ctx context.Context, cl *client.Client, names []string, past []client.Event) (map[string]bool, error) {
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

// wanted reports whether an event is one of those that are asked for.
func wanted(e client.Event, named map[string]bool, since time.Time) bool {
	return (len(named) == 0 || named[e.Service]) && !e.At.Before(since)
}

// moment is a flag for a time: how long ago, or when.
type moment struct{ time.Time }

func sinceFlag(c *call) *moment {
	m := &moment{}
	c.flags.Var(m, "since", "only what happened since then: `D|TIME`, such as 10m, 15:04 or 2006-01-02T15:04:05")
	return m
}

// String implements flag.Value.
func (m *moment) String() string { return "" }

// Set implements flag.Value.
func (m *moment) Set(text string) error {
	if ago, err := time.ParseDuration(text); err == nil {
		if ago <= 0 {
			return errors.New("it must be positive, such as 10m")
		}
		m.Time = time.Now().Add(-ago)
		return nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			m.Time = at
			return nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			now := time.Now()
			m.Time = time.Date(now.Year(), now.Month(), now.Day(), at.Hour(), at.Minute(), at.Second(), 0, time.Local)
			return nil
		}
	}
	return errors.New("it is neither a duration such as 10m nor a time such as 15:04 or 2006-01-02T15:04:05")
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
	case e.Exit != nil && strings.HasSuffix(e.Reason, supervisor.ReasonTaken):
		fmt.Fprintf(b, "no crash: it %s (%s)", e.Reason, e.Exit.Cause)
	case e.Exit != nil:
		fmt.Fprint(b, eventExit(e.Exit))
	case e.From != e.To:
		fmt.Fprintf(b, "%s → %s (%s)", e.From, e.To, e.Reason)
	default:
		b.WriteString(e.Reason)
	}
	if e.By != nil {
		fmt.Fprintf(b, ", by %s", show.By(e.By))
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
