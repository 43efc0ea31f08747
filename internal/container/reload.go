package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/container/reloadplan"
	"hinit/supervisor"
)

// Reload implements control.Core.
func (a api) Reload(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
	// The configuration may be on a disk that hangs. One reload at a time waits for it, and ends what it has begun.
	var did client.ReloadReply
	err = blocking.Wait(ctx, "the reload", func() (err error) {
		did, err = a.c.reload(context.WithoutCancel(ctx), how)
		return err
	})
	if errors.Is(err, blocking.ErrSlow) {
		return client.ReloadReply{}, fmt.Errorf("%w; it goes on", err)
	}
	return did, err
}

// reloadAndSay is a reload nobody waits for.
func (c *container) reloadAndSay() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	did, err := c.reload(ctx, client.Reload{})
	if err != nil {
		for line := range strings.Lines(err.Error()) { // a mistake a line
			c.Say("cannot reload: %s", strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "cannot reload: "))
		}
		return
	}
	c.Say("reloaded, %d settings changed", len(did.Changes))
	for _, s := range did.Plan {
		c.Say("%s %s %s", s.Op, s.Service, s.What)
	}
}

// reload reads the configuration again. New services are started, services that are gone are stopped, a changed definition takes
// effect at the next start. A bad or missing file changes nothing, unless how allows a missing one. It reports what only a new
// container can change.
func (c *container) reload(ctx context.Context, how client.Reload) (client.ReloadReply, error) {
	none := client.ReloadReply{}
	if !c.reloads.TryLock() {
		return none, errors.New("cannot reload: the boot or another reload is under way; try again")
	}
	defer c.reloads.Unlock()
	old := c.cfg.Load()
	options := c.configOptions()
	cfg, err := loadConfig(options)
	if old.Path != "" && (err == nil && cfg.Path == "" || errors.Is(err, fs.ErrNotExist)) {
		if !how.Force {
			return none, fmt.Errorf("cannot read configuration %q: it is gone, and without it its services would be stopped (nothing was changed); put it back, or: hinit reload --force", old.Path)
		}
		options.Text = []byte{}
		cfg, err = loadConfig(options)
	}
	if err != nil {
		return none, err
	}
	var changed []string
	for _, d := range config.Diff(old, cfg) {
		changed = append(changed, d.Key)
		if slices.Contains(fixedKeys, d.Key) {
			return none, fmt.Errorf("cannot change %s while the container runs; restart the container for that (nothing was changed)", d.Key)
		}
	}
	units, err := c.units.Services(cfg)
	if err != nil {
		return none, fmt.Errorf("%w (nothing was changed)", err)
	}
	if !c.tenure.Serves() { // it has no services
		if !how.DryRun {
			c.cfg.Store(cfg)
		}
		return client.ReloadReply{Changes: changed, Settings: changed, DryRun: how.DryRun}, nil
	}
	plan := c.planReload(old, cfg, units)
	if how.DryRun {
		return client.ReloadReply{Changes: changed, Plan: plan.Steps(c.loop.Snapshot(), false), Settings: reloadplan.Settings(changed), DryRun: true}, nil
	}
	c.cfg.Store(cfg)
	c.health.Configure(cfg)
	var problems []error
	for _, name := range sortedKeys(old.Services) {
		if _, stays := cfg.Services[name]; !stays {
			problems = append(problems, c.loop.Do(ctx, supervisor.Remove{Name: name}), c.slots().Withdraw(ctx, name))
		}
	}
	for _, name := range sortedKeys(units) {
		problems = append(problems, c.applyService(ctx, cfg, old, units[name]))
	}
	problems = append(problems, c.reequip(ctx, cfg))
	c.timetable.Change(cfg)
	out := client.ReloadReply{Changes: changed, Plan: plan.Steps(c.loop.Snapshot(), true), Settings: reloadplan.Settings(changed)}
	return out, errors.Join(problems...)
}

// reequip makes every gateway start as the configuration says from its next start on.
func (c *container) reequip(ctx context.Context, cfg *config.Config) error {
	var problems []error
	for _, s := range c.loop.Snapshot().Services {
		if s.Kind != supervisor.KindGateway {
			continue
		}
		p, err := c.store.Profile(s.Profile)
		if err == nil {
			err = c.registerGateway(ctx, cfg, p)
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// fixedKeys are read once, at the start of the container.
var fixedKeys = []string{
	"home", "agent.user", "profiles.marker", "profiles.max", "shutdown.budget", "start.parallel", "control.socket", "control.others",
	"logs.dir", "logs.console", "logs.console_stall", "logs.max_line_kb", "logs.mask",
}

// planReload compares two configurations. after are the services of the new one.
func (c *container) planReload(old, cfg *config.Config, after map[string]supervisor.Unit) reloadplan.Plan {
	p := reloadplan.Plan{Before: make(map[string]supervisor.Unit), After: maps.Clone(after), Old: old, New: cfg}
	for _, s := range old.Services {
		if u, err := c.units.Service(old, s); err == nil { // else a user that it names is gone
			p.Before[s.Name] = u
		}
	}
	for _, s := range c.loop.Snapshot().Services {
		profile, err := c.store.Profile(s.Profile)
		if s.Kind != supervisor.KindGateway || err != nil {
			continue
		}
		exports := c.exports(s.Profile)
		p.Before[s.Name], p.After[s.Name] = c.units.Gateway(old, profile, exports), c.units.Gateway(cfg, profile, exports)
	}
	return p
}

// applyService registers a service of a new configuration, and starts or stops it where that has changed.
func (c *container) applyService(ctx context.Context, cfg, old *config.Config, u supervisor.Unit) error {
	name := u.Name
	s := cfg.Services[name]
	c.sayRootsDir(cfg, u)
	want := supervisor.WantDown
	if s.WantedUp() {
		want = supervisor.WantUp
	}
	before, known := old.Services[name]
	if c.slots().Foreign(name) {
		return fmt.Errorf("cannot define service %q: a service directory has that name; remove it from the scan directory", name)
	}
	if err := c.register(ctx, u, want); err != nil {
		return err
	}
	if !known || before.Enabled != s.Enabled {
		c.publishService(ctx, cfg, s)
	}
	switch {
	case !known || before.Enabled == s.Enabled, s.Enabled && !s.WantedUp():
		return nil
	case s.Enabled:
		return c.loop.Do(ctx, supervisor.Start{Name: name})
	}
	return c.loop.Do(ctx, supervisor.Stop{Name: name})
}

// configOptions says where the configuration is read from again.
func (c *container) configOptions() config.Options {
	if c.route.Load().Plain {
		return config.Options{Path: c.cfg.Load().Path, Plain: true, Env: os.LookupEnv}
	}
	return config.Options{Env: os.LookupEnv}
}
