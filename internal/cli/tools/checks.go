package tools

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

var checksVerb = cli.Verb{
	Name: "checks", Action: "show the checks", Args: "[NAME... | --state STATE] [--now | --pause D | --resume] [--json]", SelectsServices: true,
	Summary: "list what the checks say, ask them now, or pause them",
	Run:     showChecks, EmptyResult: cli.EmptyList,
}

// serviceChecks is the output of hinit checks for one service.
type serviceChecks struct {
	Name   string         `json:"name"`
	Checks []client.Check `json:"checks"`
}

func showChecks(t *cli.Terminal, c *cli.Call) int {
	now := c.Flags.Bool("now", false, "ask them now, where they are not paused")
	resume := c.Flags.Bool("resume", false, "end a pause, and ask them now")
	pause := c.Flags.Duration("pause", 0, "ask none of them for so long, `D`, a day at most")
	names, code, ok := c.Parse(t, 0, -1)
	doing := c.Action()
	switch {
	case *resume:
		doing = "resume the checks"
	case *now:
		doing = "ask the checks"
	case *pause != 0:
		doing = "pause the checks"
	}
	steer := *now || *resume || *pause != 0
	switch {
	case !ok:
		return code
	case *pause > 24*time.Hour:
		return t.Fail(cmdline.ExitUsage, "cannot %s: --pause goes up to 24h", doing)
	case steer && len(names) == 0, cli.FlagGiven(c, "pause") && *pause <= 0, *pause > 0 && (*now || *resume):
		return t.Fail(cmdline.ExitUsage, "cannot %s: expected: hinit checks NAME... [--now | --pause D | --resume]", doing)
	}
	code = cmdline.ExitDone
	var services []client.Service
	if steer {
		services, code = runOrPauseChecks(t, c, doing, names, *now && !*resume, *pause)
	} else {
		st, err := t.Status(names...)
		if err != nil {
			return t.ReportError(c.Action(), err)
		}
		services = st.Services
	}
	list := []serviceChecks{}
	tw := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tCHECK\tKIND\tTYPE\tSTATE\tASKED\tANSWER")
	for _, s := range services {
		if len(s.Checks) > 0 {
			list = append(list, serviceChecks{s.Name, s.Checks})
		}
		for _, one := range s.Checks {
			lastAnswer := "-"
			if one.AnsweredAt != nil {
				lastAnswer = show.FormatDuration(max(time.Since(*one.AnsweredAt), 0)) + " ago"
			}
			if one.Failed {
				code = max(code, cmdline.ExitNotUp)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", show.EscapeName(s.Name), show.EscapeName(one.Name), one.Kind, one.Type, one.State, lastAnswer, show.EscapeLine(one.Answer))
		}
	}
	shown := t.ShowResult(c, list, nil, func() {
		switch {
		case len(list) > 0:
			tw.Flush()
		case code == cmdline.ExitDone:
			fmt.Fprintln(t.Out, "no checks; hinit.yaml takes some, such as: services: {NAME: {checks: [{kind: alive, tcp: {port: 8080}}]}}")
		}
	})
	return max(code, shown)
}

// runOrPauseChecks runs the checks of each service now if pause is 0, which also ends a pause. Otherwise it pauses the checks.
// now means that the user wants to run the checks; paused checks are then an error. doing is the action in the error messages
// that runOrPauseChecks prints. It returns the services that have accepted the order, and the exit code.
func runOrPauseChecks(t *cli.Terminal, c *cli.Call, doing string, names []string, now bool, pause time.Duration) (done []client.Service, code int) {
	cl, ctx := t.Client(), context.Background()
	for _, name := range names {
		s, err := cl.Service(ctx, name)
		// No order can pause or run the built-in check for deafness.
		switch hasSome := slices.ContainsFunc(s.Checks, func(one client.Check) bool { return one.Type != show.ProblemDeaf }); {
		case err != nil:
		case !hasSome && !c.IsNamed(&s):
			continue
		case now && slices.ContainsFunc(s.Checks, func(one client.Check) bool { return one.State == client.CheckPaused }):
			err = fmt.Errorf("they are paused; hinit checks %s --resume ends that", name)
		default:
			s, err = cl.RunOrPauseChecks(ctx, s.Name, pause)
		}
		if err != nil {
			code = max(code, t.ReportError(fmt.Sprintf("%s of %q", doing, name), err))
			continue
		}
		done = append(done, s)
	}
	return done, code
}
