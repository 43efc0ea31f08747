package cli

import (
	"fmt"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func runOnceVerb() verb {
	return verb{
		name: "run-once", doing: "run a task once", args: "NAME [--no-wait] [--timeout 1h] [--json]", summary: "run a task now, and wait until it has ended",
		help: "A task is a service of hinit.yaml with once or schedule. A run that is under way will do. The end of its output is printed.\n" +
			"The exit code is 1 when the run failed.",
		run: runOnce,
	}
}

func runOnce(t *terminal, c *call) int {
	noWait := c.flags.Bool("no-wait", false, "do not wait for the end")
	asJSON := c.flags.Bool("json", false, "print JSON, the service as status has it")
	timeout := c.flags.Duration("timeout", time.Hour, "how long to wait for the end, as `D`; an hour at most")
	names, code, ok := c.parse(t, 1, 1)
	switch {
	case !ok:
		return code
	case *timeout <= 0 || *timeout > time.Hour:
		return t.fail(exitUsage, "cannot run a task once: --timeout goes up to 1h")
	}
	doing := fmt.Sprintf("run %q once", names[0])
	ctx, cancel := cmdline.Interruptible()
	defer cancel()
	begin := time.Now()
	cl, err := t.dialSoon(ctx, min(*timeout, bootPatience))
	if err != nil {
		return t.failed(doing, err)
	}
	stopped := t.progress("running", begin)
	s, err := cl.RunOnce(ctx, names[0], client.Wait{Wait: !*noWait, Timeout: max(*timeout-time.Since(begin), time.Millisecond)})
	stopped()
	if err != nil {
		return t.failed(doing, err)
	}
	if *asJSON {
		if err := jsonLineTo(t.out, s); err != nil {
			return t.failed(doing, err)
		}
	}
	switch {
	case *noWait && !*asJSON:
		fmt.Fprintln(t.out, show.Accepted(s))
	case *noWait:
	case !*asJSON && s.LastExit != nil:
		for _, line := range s.LastExit.Tail {
			fmt.Fprintln(t.out, show.Line(line))
		}
		if s.Done {
			fmt.Fprintln(t.out, show.Ended(s))
		}
	}
	if *noWait || s.Done {
		return exitDone
	}
	return t.fail(exitFailed, "cannot %s: %s", doing, show.Ended(s))
}
