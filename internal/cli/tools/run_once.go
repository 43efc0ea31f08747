package tools

import (
	"fmt"
	"time"

	"hinit/client"
	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

var runOnceVerb = cli.Verb{
	Name: "run-once", Doing: "run a task once", Args: "NAME... | --state STATE [--no-wait] [--timeout 1h] [--json]",
	Summary:  "run a task now, and wait until it has ended",
	Services: true, Run: runOnce,
}

func runOnce(t *cli.Terminal, c *cli.Call) int {
	noWait := c.Flags.Bool("no-wait", false, "do not wait for the end")
	timeout := c.Flags.Duration("timeout", time.Hour, "how long to wait for the end, as `D`; an hour at most")
	names, code, ok := c.Parse(t, 1, -1)
	switch {
	case !ok:
		return code
	case *timeout <= 0 || *timeout > time.Hour:
		return t.Fail(cmdline.WrongUsage, "cannot run a task once: --timeout goes up to 1h")
	}
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	begin := time.Now()
	cl, err := t.DialSoon(ctx, min(*timeout, cli.BootPatience))
	if err != nil {
		return t.Failed(fmt.Sprintf("run %q once", names[0]), err)
	}
	wait := client.Wait{Wait: !*noWait, Timeout: max(*timeout-time.Since(begin), time.Millisecond)}
	return t.Order(ctx, cl, c, "run %q once", names, wait, begin, func(s client.Service, doing string) int {
		if s.LastExit != nil && !c.JSON {
			for _, line := range s.LastExit.Tail {
				fmt.Fprintln(t.Out, show.Line(line))
			}
			if s.Done {
				fmt.Fprintln(t.Out, show.Ended(s))
			}
		}
		if !s.Done {
			return t.Fail(cmdline.Failed, "cannot %s: %s", doing, show.Ended(s))
		}
		return cmdline.Done
	})
}
