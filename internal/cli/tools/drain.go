package tools

import (
	"context"
	"fmt"
	"strings"
	"time"

	"hinit/internal/cli"
	"hinit/internal/cmdline"
	"hinit/internal/control/show"
	"hinit/internal/pause"
	"hinit/internal/procstat"
	"hinit/profiles"
)

const (
	drainTime  = 20 * time.Second
	drainEvery = 200 * time.Millisecond
)

var drainVerb = cli.Verb{
	Name: "drain", Summary: "wait until no gateway works on an answer", Doing: "wait for idle gateways", Args: "[--timeout D]",
	Run: func(t *cli.Terminal, c *cli.Call) int {
		timeout := c.Flags.Duration("timeout", drainTime, "how long to wait, as `D`")
		if _, code, ok := c.Parse(t, 0, 0); !ok {
			return code
		}
		cfg, agent, err := loadAgent(t)
		if err != nil {
			return t.Failed(c.Doing(), err)
		}
		store := profiles.Open(cfg.Home, agent.Actor, cfg.Profiles.Marker)
		ctx, cancel := context.WithTimeout(context.Background(), *timeout)
		defer cancel()
		for {
			busy, err := busyProfiles(store)
			switch {
			case err != nil:
				return t.Failed("wait for idle gateways", err)
			case len(busy) == 0:
				return cmdline.Done
			case !pause.For(ctx, drainEvery):
				return t.Fail(cmdline.Failed, "not idle within %s: %s", *timeout, strings.Join(busy, ", "))
			}
		}
	},
}

// busyProfiles describes the profiles whose gateways are working on answers. It ignores a state file whose process has ended.
func busyProfiles(store *profiles.Store) (busy []string, err error) {
	all, _, err := store.Discover()
	for _, p := range all {
		st, unread := store.ReadState(p.Name)
		if unread != nil || st.Active == 0 {
			continue // the gateway is idle, or its state file is unreadable
		}
		if process, gone := procstat.Read(st.PID); gone == nil && process.Start == st.StartTime && !process.Dead() {
			busy = append(busy, fmt.Sprintf("%s works on %d", show.Name(p.Name), st.Active))
		}
	}
	return busy, err
}
