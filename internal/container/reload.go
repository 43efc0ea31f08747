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

// reloadInTime is reload for a client that waits.
func (c *container) reloadInTime(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
	// The configuration may be on a disk that hangs. One reload at a time waits for it, and ends what it has begun.
	var did client.ReloadReply
	err = blocking.Wait(ctx, "the reload", func() (err error) {
		did, err = c.reload(context.WithoutCancel(ctx), how)
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
	if !c.registry.Turn.TryLock() {
		return none, errors.New("cannot reload: the boot or another reload is under way; try again")
	}
	defer c.registry.Turn.Unlock()
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
	_ = c.loop.Do(ctx, supervisor.Remark{Text: "the configuration is read again"}) // it fails when everything ends anyway
	c.cfg.Store(cfg)
	c.health.Configure(cfg)
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(old.Services)) {
		if _, stays := cfg.Services[name]; !stays {
			problems = append(problems, c.registry.RemoveService(ctx, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(units)) {
		if s6 := c.s6.Load(); s6 != nil && s6.Foreign(name) {
			problems = append(problems, fmt.Errorf("cannot define service %q: a service directory has that name; remove it from the scan directory", name))
			continue
		}
		problems = append(problems, c.registry.ChangeService(ctx, cfg, old, units[name]))
	}
	problems = append(problems, c.registry.RedefineAll(ctx))
	c.timetable.Change(cfg)
	out := client.ReloadReply{Changes: changed, Plan: plan.Steps(c.loop.Snapshot(), true), Settings: reloadplan.Settings(changed)}
	return out, errors.Join(problems...)
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
		exports := c.registry.Exports(s.Name)
		p.Before[s.Name], p.After[s.Name] = c.units.Gateway(old, profile, exports), c.units.Gateway(cfg, profile, exports)
	}
	return p
}

// configOptions says where the configuration is read from again.
func (c *container) configOptions() config.Options {
	if c.route.Load().Plain {
		return config.Options{Path: c.cfg.Load().Path, Plain: true, Env: os.LookupEnv}
	}
	return config.Options{Env: os.LookupEnv}
}
