package cli

import (
	"context"
	"fmt"
	"time"

	"hinit/internal/control/show"
)

// shortWait bounds the verbs that ask one quick question.
const shortWait = 5 * time.Second

func healthcheckVerb() verb {
	return verb{
		name: "healthcheck", args: "[--json]", summary: "exit 0 when the init does its work; for Docker's HEALTHCHECK",
		help: "A gateway in trouble is named, but is no reason to restart the container of all the others.\n" +
			"Until the boot is over it fails: give Docker a --health-start-period as long as the boot's hooks may take.",
		run: func(t *terminal, c *call) int {
			asJSON := c.flags.Bool("json", false, "print JSON")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			cl, err := t.dial()
			if err != nil {
				return t.failed("check the health", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), shortWait)
			defer cancel()
			h, err := cl.Health(ctx)
			if err == nil && *asJSON {
				err = writeJSON(t.out, h)
			}
			switch {
			case err != nil:
				return t.failed("check the health", err)
			case *asJSON && h.OK:
				return exitDone
			case *asJSON:
				return exitFailed
			case !h.OK:
				return t.fail(exitFailed, "unhealthy: %s", h.Reason)
			}
			if h.Waiting != "" {
				fmt.Fprintf(t.out, "waiting: %s\n", show.Line(h.Waiting))
			}
			fmt.Fprintf(t.out, "healthy, %d of %d wanted services are up\n", h.Up, h.Wanted)
			for _, name := range h.Troubled {
				fmt.Fprintln(t.out, "in trouble:", show.Line(name))
			}
			return exitDone
		},
	}
}
