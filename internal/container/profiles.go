package container

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/gateways"
	"hinit/internal/guard"
	"hinit/internal/registry"
	"hinit/supervisor"
)

// profilesBudget is how long the boot waits for the profiles. A volume that answers later still gets its gateways.
const profilesBudget = 15 * time.Second

// profiles registers the gateways and begins to watch the volume. After profilesBudget the boot goes on without those that are missing.
func (c *container) profiles(ctx context.Context, cfg *config.Config) error {
	done := make(chan error, 1)
	read := make(chan struct{})
	c.reading = read
	guard.Go("bringing up the profiles", func() {
		defer close(read)
		if err := c.tenure.Check(); err != nil {
			c.generation.Settle()
			done <- err
			return
		}
		if c.route.Load().Supervise {
			c.whichProfile()
		}
		c.readTopology()
		c.warnOfSlowStop()
		known, err := c.keeper.Boot(ctx, gateways.Boot{
			Args: c.args, Services: len(cfg.Services), Found: c.boot.Found, Log: func(write func() error) { c.logSoon(ctx, write) },
		})
		_ = c.registry.Meet(ctx, registry.NeedProfiles) // it fails when the container has ended
		if !c.route.Load().DashboardOnly {              // such a container shares its volume with one that has the gateways
			c.keeper.Start(ctx, known)
		}
		guard.Go("waiting for the boot log", func() { // another image would not write it
			<-c.logged
			c.generation.Settle()
		})
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(profilesBudget):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if b := c.boot.Profiles(c.broughtUp()); b != nil && b.Done > 0 {
		c.Say("boot: profiles %s of %s after %s; the boot goes on while the others come up", show.Thousands(b.Done), show.Thousands(b.Profiles), profilesBudget)
		return nil
	}
	return fmt.Errorf("cannot read the profiles: %q did not answer within %s; their gateways start when it does", cfg.Home, profilesBudget)
}

// whichProfile settles whose gateway the CMD asked for: the one it named, or the one the agent's commands would use.
func (c *container) whichProfile() {
	if !c.route.Load().ProfileNamed {
		active, err := c.store.Active()
		if err != nil {
			c.Warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := c.store.Profile(active); err == nil {
			route := *c.route.Load()
			route.Profile = active
			c.route.Store(&route)
		}
	}
	for line := range strings.Lines(boot.Breadcrumb(c.route.Load().Profile)) {
		c.Line(strings.TrimSuffix(line, "\n"))
	}
	if len(c.route.Load().Ignored) > 0 {
		c.Warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(c.route.Load().Ignored, " "))
	}
}

// readTopology tells gateways, from their next start on, what an operator has asked for.
func (c *container) readTopology() {
	if t, err := c.store.Topology(os.Getenv, ""); err == nil { // else the boot pass warns
		c.units.SetTopology(t)
	}
}

// broughtUp is how many profiles have a gateway.
func (c *container) broughtUp() int {
	n := 0
	for _, s := range c.loop.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			n++
		}
	}
	return n
}
