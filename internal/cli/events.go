package cli

import (
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
		name: "events", args: "[NAME...] [-f] [--json] [-n N] [--since D|TIME]",
		summary: "print what has happened: starts, exits with their causes, stops",
		help:    "Of everything, or of the named profiles and services. --since takes 10m, 15:04, 2006-01-02, 2006-01-02T15:04:05 or RFC 3339.",
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
	named, err := t.eventNames(ctx, cl, names)
	if err != nil {
		return t.failed("show events", err)
	}
	last := *n
	narrow := len(named) > 0 || !since.IsZero()
	if !since.IsZero() && !flagGiven(c, "n") {
		last = -1
	}
	most := last // of those that are shown
	switch {
	case last < 0:
		last = 0 // all
	case last == 0:
		last = -1 // none of the past
	}
	o := client.EventOptions{Last: last, Follow: *follow}
	skip := 0
	if narrow && most >= 0 { // which of them are the last that are wanted is known when all have been seen
		o.Last = 0
		err = cl.Events(ctx, client.EventOptions{}, func(e client.Event) error {
			if wanted(e, named, since.Time) {
				skip++
			}
			return nil
		})
		if err != nil {
			return t.failed("show events", err)
		}
		skip = max(skip-most, 0)
	}
	show := func(e client.Event) error {
		o = client.EventOptions{Since: max(o.Since, e.Seq), Follow: true}
		if e.Lost == 0 && !wanted(e, named, since.Time) {
			return nil
		}
		if skip > 0 {
			skip--
			return nil
		}
		if *asJSON {
			return jsonLineTo(t.out, e)
		}
		_, err := fmt.Fprintln(t.out, show.Line(eventLine(e)))
		return err
	}
	err = cl.Events(ctx, o, show)
	for *follow && ctx.Err() == nil && (err == nil || errors.Is(err, client.ErrUnreachable)) {
		// hinit ends, or it has become another image of itself, where the events go on.
		if h, gone := cl.Health(ctx); gone != nil || !h.OK && !h.Booting {
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

// eventNames are the names that events have of what was named. A service that is gone has events too, so an unknown name is taken as it
// is, and as the profile of a gateway.
func (t *terminal) eventNames(ctx context.Context, cl *client.Client, names []string) (map[string]bool, error) {
	named := make(map[string]bool)
	for _, name := range names {
		st, err := cl.Status(ctx, name)
		switch {
		case err == nil:
			named[st.Services[0].Name] = true
		case errors.Is(err, client.ErrUnknown):
			gone := []string{name, profiles.SlotName(name)}
			seen := errors.New("seen")
			told := cl.Events(ctx, client.EventOptions{}, func(e client.Event) error {
				if slices.Contains(gone, e.Service) {
					named[e.Service] = true
					return seen
				}
				return nil
			})
			if !errors.Is(told, seen) {
				return nil, err
			}
		default:
			return nil, err
		}
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
