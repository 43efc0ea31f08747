package tools

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func checksVerb() cli.Verb {
	return cli.Verb{
		Name: "checks", Doing: "show the checks", Args: "[NAME... | --state STATE] [--now | --pause D | --resume] [--json]", Services: true,
		Help: `Of all services that have checks, or of the named ones. The exit code is 3 when one of them fails.
--now has each check of the named services asked at once. --pause has none asked for that long, as during work on what they ask for: nothing
follows from them, a restart of hinit or of the service changes nothing about it, and a service that starts meanwhile is not ready before they go on.`,
		Run: checks,
	}
}

// checksOf is the checks of one service.
type checksOf struct {
	Name   string         `json:"name"`   // the service
	Checks []client.Check `json:"checks"` // as in the status
}

func checks(t *cli.Terminal, c *cli.Call) int {
	now := c.Flags.Bool("now", false, "ask them now")
	resume := c.Flags.Bool("resume", false, "end a pause, and ask them now")
	pause := c.Flags.Duration("pause", 0, "ask none of them for so long, `D`, a day at most")
	asJSON := c.Flags.Bool("json", false, "print JSON")
	names, code, ok := c.Parse(t, 0, -1)
	steer := *now || *resume || *pause != 0
	switch {
	case !ok:
		return code
	case steer && len(names) == 0, *pause < 0, *pause > 0 && (*now || *resume):
		return t.Fail(cmdline.WrongUsage, "cannot show the checks: expected: hinit checks NAME... [--now | --pause D | --resume]")
	}
	st, err := t.Status(cli.ShortWait, names...)
	for i := range st.Services {
		if err == nil && steer {
			st.Services[i], err = cli.Ask(t, cli.ShortWait, func(ctx context.Context, cl *client.Client) (client.Service, error) {
				return cl.SteerChecks(ctx, st.Services[i].Name, *pause)
			})
		}
	}
	if err != nil {
		return t.Failed(c.Doing(), err)
	}
	code = cmdline.Done
	list := []checksOf{}
	tw := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tCHECK\tKIND\tTYPE\tSTATE\tASKED\tANSWER")
	for _, s := range st.Services {
		if len(s.Checks) > 0 {
			list = append(list, checksOf{s.Name, s.Checks})
		}
		for _, one := range s.Checks {
			asked := "-"
			if one.At != nil {
				asked = show.Duration(max(time.Since(*one.At), 0)) + " ago"
			}
			if one.Failed {
				code = cmdline.NotUp
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", show.Name(s.Name), show.Name(one.Name), one.Kind, one.Type, one.State, asked, show.Line(one.Answer))
		}
	}
	if *asJSON {
		return max(code, t.Failed(c.Doing(), cli.WriteJSON(t.Out, list)))
	}
	return max(code, t.Failed(c.Doing(), tw.Flush()))
}
