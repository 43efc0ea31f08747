package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

func reloadVerb() Verb {
	return Verb{
		Name: "reload", Args: "[--dry-run] [--force] [--json]",
		Summary: "read hinit.yaml again and apply it: what is new starts, what is gone stops",
		Help: `Prints a line for each service that it touches: + it starts, ~ it is changed, - it stops. A service that runs and is
changed goes on as it was until it is restarted (hinit restart --changed). A file with a mistake changes nothing.`,
		Run: reload,
	}
}

func reload(t *Terminal, c *Call) int {
	var how client.Reload
	c.Flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	c.Flags.BoolVar(&how.Force, "force", false, "if hinit.yaml is gone, stop the services that were in it")
	asJSON := c.Flags.Bool("json", false, "print JSON")
	if _, code, ok := c.Parse(t, 0, 0); !ok {
		return code
	}
	did, err := Ask(t, time.Minute, func(ctx context.Context, cl *client.Client) (client.ReloadReply, error) { return cl.Reload(ctx, how) })
	if said := (*client.Error)(nil); errors.As(err, &said) && strings.Contains(said.Message, "\n") {
		code := cmdline.Done
		for line := range strings.SplitSeq(said.Message, "\n") { // a mistake a line
			one := *said
			one.Message = line
			code = t.Failed("reload", &one)
		}
		return code
	}
	if err != nil {
		return t.Failed("reload", err)
	}
	if *asJSON {
		return t.Failed("reload", WriteJSON(t.Out, did))
	}
	for _, s := range did.Plan {
		fmt.Fprintln(t.Out, s.Op, show.Line(s.Service), s.What)
	}
	for _, key := range did.Settings {
		fmt.Fprintln(t.Out, "changed:", show.Line(key))
	}
	switch {
	case len(did.Plan)+len(did.Changes) == 0:
		fmt.Fprintln(t.Out, "nothing has changed")
	case how.DryRun:
		fmt.Fprintln(t.Out, "this was a dry run: nothing was changed")
	}
	return cmdline.Done
}
