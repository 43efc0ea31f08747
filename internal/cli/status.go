package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

// StatusVerb is the command hinit status.
var StatusVerb = Verb{
	Name: "status", Action: "show the status", Args: "[NAME...] [--state STATE] [--json] [--watch] [-v]", SelectsServices: true,
	Summary: "show which services run, since when, and why others do not",
	Run:     printStatus, EmptyResult: emptyStatus,
}

func printStatus(t *Terminal, c *Call) int {
	watch := c.Flags.Bool("watch", false, "print again whenever something changes, until Ctrl-C")
	verbose := c.Flags.Bool("v", false, "how long the boot took too")
	names, code, ok := c.Parse(t, 0, -1)
	if !ok {
		return code
	}
	cl := t.Client()
	ctx, cancel := context.Background(), func() {}
	if *watch { // only a signal ends --watch
		ctx, cancel = cmdline.InterruptibleContext()
	}
	defer cancel()
	down, err := t.showStatus(ctx, cl, names, c.JSON, *watch, *verbose)
	for *watch && err == nil { // after a re-execution of hinit, connect again
		err = cl.Watch(ctx, func(client.StatusChange) error {
			// A change contains only some services, so print all.
			down, err = t.showStatus(ctx, cl, names, c.JSON, *watch, *verbose)
			return err
		})
	}
	switch {
	case ctx.Err() != nil:
		return cmdline.ExitDone
	case err != nil:
		return t.ReportError("show the status", err)
	case down > 0 && len(c.NamedServices) > 0:
		st, err := cl.Status(ctx, c.NamedServices...) // only services that the user has named decide the exit code, not services from a pattern
		if slices.ContainsFunc(st.Services, func(s client.Service) bool { return s.State != client.StateUp }) {
			return cmdline.ExitNotUp
		}
		return t.ReportError("show the status", err)
	}
	return cmdline.ExitDone
}

// emptyStatus returns a status without services, for --json if no service has the state from --state.
func emptyStatus(t *Terminal) (any, error) {
	st, err := t.Status()
	st.Services = []client.Service{}
	return st, err
}

// showStatus prints the status once, and returns how many of its services are not up.
func (t *Terminal) showStatus(ctx context.Context, cl *dial.Client, names []string, asJSON, watch, verbose bool) (down int, err error) {
	if !asJSON {
		table, down, err := cl.StatusTable(ctx, t.TableFormat(verbose), names...)
		if err != nil {
			return 0, err
		}
		if watch && t.IsScreen {
			fmt.Fprint(t.RawOutput(), "\x1b[H\x1b[2J")
		}
		_, err = t.RawOutput().Write(cmdline.EscapeLines(table)) // the table contains text that a service may have chosen
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
	if watch { // each line of the stream is one JSON document
		return down, cmdline.WriteJSON(t.Out, st, "")
	}
	return down, cmdline.WriteJSON(t.Out, st, "  ")
}

// TableFormat returns the format of a table on this terminal: width and colours.
func (t *Terminal) TableFormat(verbose bool) client.TableFormat {
	format := client.TableFormat{Verbose: verbose}
	if !t.IsScreen {
		return format
	}
	if size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ); err == nil {
		format.Width = int(size.Col)
	}
	none, _ := t.Env("NO_COLOR")
	kind, _ := t.Env("TERM")
	format.Colour = none == "" && kind != "dumb"
	return format
}

// HealthcheckVerb is the command hinit healthcheck.
var HealthcheckVerb = Verb{
	Name: "healthcheck", Action: "check the health", Args: "[--startup | --ready | --live] [--json]", Summary: "exit 0 when the init does its work; for Docker's HEALTHCHECK and the probes of a pod",
	Run: func(t *Terminal, c *Call) int {
		startup := c.Flags.Bool(client.ProbeStartup, false, "ask whether the boot is over: a pod's startupProbe")
		ready := c.Flags.Bool(client.ProbeReady, false, "ask whether what is wanted is served: a pod's readinessProbe")
		live := c.Flags.Bool(client.ProbeLive, false, "ask whether the supervisor answers: a pod's livenessProbe")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		probe, optionCount := "", 0
		for name, is := range map[string]bool{client.ProbeStartup: *startup, client.ProbeReady: *ready, client.ProbeLive: *live} {
			if is {
				probe, optionCount = name, optionCount+1
			}
		}
		if optionCount > 1 {
			return t.Fail(cmdline.ExitUsage, "cannot check the health: give one of --startup, --ready and --live")
		}
		h, err := t.Client().Probe(context.Background(), probe)
		code := t.ShowResult(c, h, err, func() {
			no := map[string]string{client.ProbeReady: "not ready", client.ProbeStartup: "not started", client.ProbeLive: "not live"}[probe]
			t.printHealth(&h, cmp.Or(no, "unhealthy"))
		})
		if err == nil && !h.OK {
			return cmdline.ExitFailed
		}
		return code
	},
}

// printHealth prints whether the container is healthy. no begins the line about an unhealthy container, such as "not ready".
func (t *Terminal) printHealth(h *client.Health, no string) {
	if !h.OK {
		fmt.Fprintf(t.Err, "%s: %s\n", no, show.EscapeLine(h.Reason))
		return
	}
	if h.WaitingReason != "" {
		fmt.Fprintf(t.Out, "waiting: %s\n", show.EscapeLine(h.WaitingReason))
	}
	fmt.Fprintf(t.Out, "healthy, %d of %d wanted services are up\n", h.Up, h.WantedUp)
	for _, name := range h.Troubled {
		fmt.Fprintln(t.Out, "in trouble:", show.EscapeLine(name))
	}
}
