package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
)

func reloadVerb() verb {
	return verb{
		name: "reload", args: "[--dry-run] [--force] [--json]",
		summary: "read hinit.yaml again and apply it: what is new starts, what is gone stops",
		help: `Prints a line for each service that it touches: + it starts, ~ it is changed, - it stops. A service that runs and is
changed goes on as it was until it is restarted (hinit restart --changed). A file with a mistake changes nothing.`,
		run: reload,
	}
}

func reload(t *terminal, c *call) int {
	var how client.Reload
	c.flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	c.flags.BoolVar(&how.Force, "force", false, "if hinit.yaml is gone, stop the services that were in it")
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	did, err := ask(t, time.Minute, func(ctx context.Context, cl *client.Client) (client.ReloadReply, error) { return cl.Reload(ctx, how) })
	if said := (*client.Error)(nil); errors.As(err, &said) && strings.Contains(said.Message, "\n") {
		code := exitDone
		for line := range strings.SplitSeq(said.Message, "\n") { // a mistake a line
			one := *said
			one.Message = line
			code = t.failed("reload", &one)
		}
		return code
	}
	if err != nil {
		return t.failed("reload", err)
	}
	if *asJSON {
		return t.failed("reload", writeJSON(t.out, did))
	}
	for _, s := range did.Plan {
		fmt.Fprintln(t.out, s.Op, show.Line(s.Service), s.What)
	}
	for _, key := range did.Settings {
		fmt.Fprintln(t.out, "changed:", show.Line(key))
	}
	switch {
	case len(did.Plan)+len(did.Changes) == 0:
		fmt.Fprintln(t.out, "nothing has changed")
	case how.DryRun:
		fmt.Fprintln(t.out, "this was a dry run: nothing was changed")
	}
	return exitDone
}
