package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/control/show"
)

func topologyVerb() verb {
	return verb{
		name: "topology", args: "[" + strings.Join(client.Topologies, " | ") + "] [--dry-run] [--json]",
		summary: "tell or change how many gateways serve the profiles",
		help: `per-profile: each profile has a gateway of its own. multiplexed: the gateway of the default profile serves all. auto: as the variable
GATEWAY_MULTIPLEX_PROFILES says, else multiplex_profiles in the default profile's config.yaml, else per-profile.
What is asked for stays after a restart of the container. While it changes, no profile is served by two gateways.`,
		run: topology,
	}
}

func topology(t *terminal, c *call) int {
	var how client.Topology
	c.flags.BoolVar(&how.DryRun, "dry-run", false, "print what it would do, and do nothing")
	asJSON := c.flags.Bool("json", false, "print JSON")
	modes, code, ok := c.parse(t, 0, 1)
	if !ok {
		return code
	}
	if len(modes) == 1 {
		how.Mode = modes[0]
	}
	is, err := ask(t, 4*time.Minute, func(ctx context.Context, cl *client.Client) (client.TopologyReply, error) {
		return cl.Topology(ctx, how)
	})
	switch {
	case err != nil:
		return t.failed("change the topology", err)
	case *asJSON:
		return t.failed("tell the topology", writeJSON(t.out, is))
	}
	for _, step := range is.Steps {
		fmt.Fprintln(t.out, show.Line(step))
	}
	from := is.From
	switch from {
	case "":
		from = "default"
	case ".hinit-topology":
		from = "asked for by hinit topology"
	}
	fmt.Fprintf(t.out, "%s (%s)\n", is.Mode, from)
	if is.DryRun {
		fmt.Fprintln(t.out, "this was a dry run: nothing was changed")
	}
	return exitDone
}
