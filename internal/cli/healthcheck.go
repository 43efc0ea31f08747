package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"hinit/client"
	"hinit/client/dial"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
)

// ShortWait is the time limit of a request that hinit answers immediately.
const ShortWait = 5 * time.Second

// HealthcheckVerb implements the command hinit healthcheck.
var HealthcheckVerb = Verb{
	Name: "healthcheck", Doing: "check the health", Args: "[--startup | --ready | --live] [--json]", Summary: "exit 0 when the init does its work; for Docker's HEALTHCHECK and the probes of a pod",
	Run: func(t *Terminal, c *Call) int {
		startup := c.Flags.Bool(client.ProbeStartup, false, "ask whether the boot is over: a pod's startupProbe")
		ready := c.Flags.Bool(client.ProbeReady, false, "ask whether what is wanted is served: a pod's readinessProbe")
		live := c.Flags.Bool(client.ProbeLive, false, "ask whether the supervisor answers: a pod's livenessProbe")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		probe, asked := "", 0
		for name, is := range map[string]bool{client.ProbeStartup: *startup, client.ProbeReady: *ready, client.ProbeLive: *live} {
			if is {
				probe, asked = name, asked+1
			}
		}
		if asked > 1 {
			return t.Fail(cmdline.WrongUsage, "cannot check the health: give one of --startup, --ready and --live")
		}
		h, err := Ask(t, ShortWait, func(ctx context.Context, cl *dial.Client) (client.Health, error) { return cl.Probe(ctx, probe) })
		code := t.Show(c, h, err, func() {
			no := map[string]string{client.ProbeReady: "not ready", client.ProbeStartup: "not started", client.ProbeLive: "not live"}[probe]
			t.printHealth(&h, cmp.Or(no, "unhealthy"))
		})
		if err == nil && !h.OK {
			return cmdline.Failed
		}
		return code
	},
}

// printHealth prints whether the container is healthy. If it is not, the line begins with the argument no, a text such as "not
// ready".
func (t *Terminal) printHealth(h *client.Health, no string) {
	if !h.OK {
		fmt.Fprintf(t.Err, "%s: %s\n", no, show.Line(h.Reason))
		return
	}
	if h.Waiting != "" {
		fmt.Fprintf(t.Out, "waiting: %s\n", show.Line(h.Waiting))
	}
	fmt.Fprintf(t.Out, "healthy, %d of %d wanted services are up\n", h.Up, h.Wanted)
	for _, name := range h.Troubled {
		fmt.Fprintln(t.Out, "in trouble:", show.Line(name))
	}
}
