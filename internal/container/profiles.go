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
	"hinit/internal/guard"
	"hinit/internal/tuning"
	"hinit/profiles"
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
		known, err := c.reconcile(ctx, cfg)
		_ = c.meet(ctx, needProfiles)      // it fails when the container has ended
		if !c.route.Load().DashboardOnly { // such a container shares its volume with one that has the gateways
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

// reconcile decides which gateways start, and registers all of them, each as soon as that is decided. It returns their profiles.
func (c *container) reconcile(ctx context.Context, cfg *config.Config) (read []profiles.Profile, err error) {
	known := false
	record := func() error { return nil } // that the CMD wants a gateway
	var answers []func() error
	writeLog := func() error { return nil }
	keepLog := func(write func() error) { writeLog = write }
	defer c.boot.Found(0)
	c.readTopology()
	c.warnOfSlowStop()
	found := func(n int) {
		c.boot.Found(n)
		c.metNeeds.inOrder.Store(n <= mostInOrder)
	}
	plan := c.store.Reconcile(profiles.BootOptions{Args: c.args, Getenv: os.Getenv, Log: keepLog, Found: found, Decided: func(d profiles.Decision) {
		want := c.wantAtBoot(d)
		c.slots().Enqueue(c.gatewaySlot(cfg, d.Profile, want == supervisor.WantDown))
		if d.Profile.Name == c.route.Load().Profile {
			known = true
			if c.route.Load().Supervise {
				record = c.recordWanted(d.Profile.Name)
			}
		}
		read = append(read, d.Profile)
		c.keeper.Found(d.Profile.Name)
		c.keeper.NotePrior(d)
		answers = append(answers, c.decided(ctx, cfg, d, want))
	}})
	c.logSoon(ctx, writeLog)
	c.keeper.ExpectLate(plan)
	for _, w := range plan.Warnings {
		c.Warn("%s", w)
	}
	for _, line := range plan.Lines {
		c.Line(line)
	}
	for _, w := range tuning.TooFewFor(len(plan.Profiles) + len(cfg.Services)) {
		c.Warn("%s", w)
	}
	var failed error
	for _, answer := range answers {
		if err := answer(); failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return read, failed
	}
	switch {
	case !c.route.Load().Supervise || plan.Skipped:
	case known:
		if err := record(); err != nil {
			c.Warn("cannot record that the gateway of %q is wanted: %v", c.route.Load().Profile, err)
		}
	default:
		return read, fmt.Errorf("cannot supervise the gateway of profile %q: there is no such profile; create it with: hinit profile create %s", c.route.Load().Profile, c.route.Load().Profile)
	}
	return read, nil
}

// readTopology tells gateways, from their next start on, what an operator has asked for.
func (c *container) readTopology() {
	if t, err := c.store.Topology(os.Getenv, ""); err == nil { // else the boot pass warns
		c.units.SetTopology(t)
	}
}

// recordWanted writes that the CMD wants the gateway of a profile, before that gateway starts and writes the same file. The
// function that it returns waits for the disk.
func (c *container) recordWanted(profile string) (record func() error) {
	if st, err := c.store.ReadState(profile); err == nil && st.HasDesired && st.Desired == profiles.Running {
		c.intents.Note(profile, profiles.Running)
		return func() error { return nil }
	}
	record, err := c.intents.Begin(profile, profiles.Running)
	if err != nil {
		return func() error { return err }
	}
	return record
}

// decided registers a gateway that the boot has decided about. A slot that is registered already is started if the boot wants it
// up.
func (c *container) decided(ctx context.Context, cfg *config.Config, d profiles.Decision, want supervisor.Want) (answer func() error) {
	name := profiles.SlotName(d.Profile.Name)
	known := c.loop.Snapshot().Find(name) != nil
	registered := c.registerGatewaySoon(ctx, cfg, d.Profile, want, d.Used)
	return func() error {
		err := registered()
		if err == nil && known && want == supervisor.WantUp {
			err = c.loop.Do(ctx, supervisor.Start{Name: name})
		}
		return err
	}
}

// wantAtBoot is what is wanted of a gateway when the container starts.
func (c *container) wantAtBoot(d profiles.Decision) supervisor.Want {
	named := d.Profile.Name == c.route.Load().Profile
	if c.route.Load().Supervise && named || d.Start && !(c.route.Load().Foreground && named) {
		return supervisor.WantUp
	}
	return supervisor.WantDown
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
