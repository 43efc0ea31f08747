package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
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
	ctx, cancel := interruptible()
	defer cancel()
	show := func() (client.Status, error) {
		st, err := cl.Status(ctx, names...)
		if err != nil {
			return st, err
		}
		if *asJSON && *watch { // a stream has one document a line
			return st, json.NewEncoder(t.out).Encode(st)
		}
		if *asJSON {
			return st, writeJSON(t.out, st)
		}
		if *watch && t.screen {
			fmt.Fprint(t.out, "\x1b[H\x1b[2J")
		}
		return st, writeStatus(t.out, st)
	}
	st, err := show()
	for *watch && err == nil {
		if waitForChange(ctx, cl) != nil {
			break
		}
		st, err = show()
	}
	switch {
	case ctx.Err() != nil:
		return exitDone
	case err != nil:
		return t.failed("show the status", err)
	}
	if len(names) > 0 {
		for _, s := range st.Services {
			if s.State != "up" {
				return exitNotUp
			}
		}
	}
	return exitDone
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

func writeStatus(w io.Writer, st client.Status) error {
	in := st.Init
	fmt.Fprintf(w, "hinit %s, pid %d, up %s, home %s", in.Version, in.PID, seconds(in.UptimeSeconds), in.Home)
	if in.Subreaper {
		fmt.Fprint(w, ", as a subreaper")
	}
	if in.Stopping {
		fmt.Fprint(w, ", STOPPING")
	}
	fmt.Fprintln(w)
	if in.Cmd != nil {
		fmt.Fprintf(w, "CMD: %s (pid %d)\n", strings.Join(in.Cmd.Argv, " "), in.Cmd.PID)
	}
	if len(in.Boot) > 0 {
		fmt.Fprintf(w, "boot: %s\n", timeline(in.Boot))
	}
	if r := in.Repair; r != nil && !r.Done {
		fmt.Fprintf(w, "repairing file ownership: %d files looked at, %d changed, now in %s\n", r.Seen, r.Changed, r.Directory)
	}
	for _, warning := range in.Warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
	if len(st.Services) == 0 {
		fmt.Fprintln(w, "no services")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSTATE\tSINCE\tPID\tRESTARTS\tMEMORY\tLAST EXIT\tNOTE")
	for _, s := range st.Services {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", s.Name, stateWord(s), seconds(time.Since(s.Since).Seconds()),
			dash(s.PID), s.Restarts, megabytes(s.MemoryBytes), lastExit(s.LastExit), note(s))
	}
	return tw.Flush()
}

// stateWord is the state with what changes its meaning.
func stateWord(s client.Service) string {
	switch {
	case s.CrashLoop:
		return s.State + " (crash-loop)"
	case s.State == "up" && !s.Ready:
		return "up (not ready)"
	}
	return s.State
}

// note says what happens next, or why nothing does.
func note(s client.Service) string {
	switch s.State {
	case "backoff":
		if s.NextStart != nil {
			return "next start in " + seconds(max(time.Until(*s.NextStart).Seconds(), 0))
		}
	case "waiting":
		return "waits for " + strings.Join(s.Needs, ", ")
	case "parked", "failed", "stopping", "killing":
		return s.Reason
	case "down":
		if s.Want == "up" {
			return s.Reason
		}
	}
	return ""
}

func lastExit(x *client.Exit) string {
	if x == nil {
		return "-"
	}
	ago := seconds(time.Since(x.At).Seconds()) + " ago"
	switch {
	case x.Cause == "spawn":
		return firstLine(x.Error) + ", " + ago
	case x.Signal != nil:
		return fmt.Sprintf("%s (%s), %s", signalName(*x.Signal), x.Cause, ago)
	case x.Code != nil:
		return fmt.Sprintf("code %d (%s), %s", *x.Code, x.Cause, ago)
	}
	return x.Cause + ", " + ago
}

func dash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func megabytes(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", float64(bytes)/1e6)
}

func seconds(s float64) string { return shortDuration(time.Duration(s * float64(time.Second))) }
