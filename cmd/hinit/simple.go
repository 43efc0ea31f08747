package main

import (
	"context"
	"encoding/json"
	"fmt"
	"text/tabwriter"
	"time"

	"hinit/client"
	"hinit/internal/version"
)

// shortWait bounds the verbs that ask one quick question.
const shortWait = 5 * time.Second

func initVerb() verb {
	return verb{
		name: "init", args: "[--] [CMD...]", summary: "be the init: PID 1 of a container, or a subreaper elsewhere",
		help: `Called as /init or tini, hinit does this without being told. Everything after init is the
container's CMD: an executable is run as it is, anything else is given to the agent,
"gateway run" supervises the gateway, and no words at all start the agent.`,
		run: func(t *terminal, c *call) int {
			if len(c.raw) == 1 && (c.raw[0] == "--help" || c.raw[0] == "-h") {
				c.usage(t.out)
				return exitDone
			}
			return initMain("hinit", c.raw)
		},
	}
}

func versionVerb() verb {
	return verb{
		name: "version", summary: "print the version",
		run: func(t *terminal, c *call) int {
			handover := c.flags.Bool("handover", false, "print the format in which it takes over from a running hinit instead")
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			if *handover {
				return showHandover(t)
			}
			fmt.Fprintln(t.out, "hinit", version.Get())
			return exitDone
		},
	}
}

func reloadVerb() verb {
	return verb{
		name: "reload", summary: "read hinit.yaml again and apply it to what starts from now on",
		run: func(t *terminal, c *call) int {
			if _, code, ok := c.parse(t, 0, 0); !ok {
				return code
			}
			cl, err := t.dial()
			if err != nil {
				return t.failed("reload", err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			changed, err := cl.Reload(ctx)
			if err != nil {
				return t.failed("reload", err)
			}
			if len(changed) == 0 {
				fmt.Fprintln(t.out, "nothing has changed")
			}
			for _, key := range changed {
				fmt.Fprintln(t.out, "changed:", key)
			}
			return exitDone
		},
	}
}

func configVerb() verb {
	return verb{
		name: "config", args: "[--json]", summary: "print the effective configuration and where each value came from",
		help: "Of the running init; when none is reachable, of the file and the environment as they are here.",
		run:  configRun,
	}
}

func configRun(t *terminal, c *call) int {
	asJSON := c.flags.Bool("json", false, "print JSON")
	if _, code, ok := c.parse(t, 0, 0); !ok {
		return code
	}
	entries, err := t.effective()
	if err != nil {
		return t.failed("show the configuration", err)
	}
	if *asJSON {
		if err := writeJSON(t.out, entries); err != nil {
			return t.failed("show the configuration", err)
		}
		return exitDone
	}
	tw := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, e := range entries {
		value, err := json.Marshal(e.Value)
		if err != nil {
			return t.failed("show the configuration", err)
		}
		fmt.Fprintf(tw, "%s\t%s\t(%s)\n", e.Key, value, e.Origin)
	}
	if err := tw.Flush(); err != nil {
		return t.failed("show the configuration", err)
	}
	return exitDone
}

func (t *terminal) effective() ([]client.ConfigEntry, error) {
	if cl, err := t.dial(); err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), shortWait)
		defer cancel()
		if entries, err := cl.Config(ctx); err == nil {
			return entries, nil
		}
	}
	cfg, err := t.config()
	if err != nil {
		return nil, err
	}
	var out []client.ConfigEntry
	for _, e := range cfg.Effective() {
		out = append(out, client.ConfigEntry{Key: e.Key, Value: e.Value, Origin: e.Origin})
	}
	return out, nil
}

func healthcheckVerb() verb {
	return verb{
		name: "healthcheck", summary: "exit 0 when the init does its work; for Docker's HEALTHCHECK",
		help: "A gateway in trouble is named, but is no reason to restart the container of all the others.",
		run: func(t *terminal, c *call) int {
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
			if err != nil {
				return t.failed("check the health", err)
			}
			if !h.OK {
				return t.fail(exitFailed, "unhealthy: %s", h.Reason)
			}
			fmt.Fprintf(t.out, "healthy, %d of %d wanted services are up\n", h.Up, h.Wanted)
			for _, name := range h.Troubled {
				fmt.Fprintln(t.out, "in trouble:", name)
			}
			return exitDone
		},
	}
}
