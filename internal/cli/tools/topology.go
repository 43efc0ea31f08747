package tools

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cli"
	"hinit/internal/control/show"
)

var topologyVerb = cli.Verb{
	Name: "topology", Doing: "change the topology", Args: "[" + strings.Join(client.Topologies, " | ") + "] [--dry-run] [--json]",
	Summary: "show or change how many gateways serve the profiles",
	Run:     topology,
}

func topology(t *cli.Terminal, c *cli.Call) int {
	var how client.Topology
	c.Flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	modes, code, ok := c.Parse(t, 0, 1)
	if !ok {
		return code
	}
	if len(modes) == 1 {
		how.Mode = modes[0]
	}
	is, err := cli.Ask(t, 4*time.Minute, func(ctx context.Context, cl *dial.Client) (client.TopologyReply, error) {
		return cl.Topology(ctx, how)
	})
	return t.Show(c, is, err, func() {
		for _, step := range is.Steps {
			fmt.Fprintln(t.Out, show.Line(step))
		}
		from := cmp.Or(is.From, "default")
		if from == ".hinit-topology" {
			from = "asked for by hinit topology"
		}
		fmt.Fprintf(t.Out, "%s (%s)\n", is.Mode, from)
		if is.DryRun {
			fmt.Fprintln(t.Out, "this was a dry run: nothing was changed")
		}
	})
}
