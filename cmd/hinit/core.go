package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

// core is the container as the control API sees it.
type core struct{ c *container }

func (a core) Snapshot() *supervisor.Snapshot { return a.c.loop.Snapshot() }
func (a core) News() <-chan struct{}          { return a.c.loop.News() }
func (a core) History() *supervisor.Ring      { return a.c.loop.History() }
func (a core) Orphans() uint64                { return a.c.loop.Orphans() }

// Ping answers when the supervisor's loop does.
func (a core) Ping(ctx context.Context) error { return a.c.loop.Do(ctx, supervisor.Tick{}) }

func (a core) Command(ctx context.Context, verb, service string) error {
	return a.c.keeper.command(ctx, verb, service)
}

// AwaitBoot implements control.Booter.
func (a core) AwaitBoot(ctx context.Context, pid int) error {
	select {
	case <-a.c.booted:
		return nil
	default:
	}
	for _, s := range a.c.loop.Snapshot().Services {
		if s.Kind == supervisor.KindHook && ofRun(pid, s.PID) {
			return errors.New("the boot waits for the one who asks")
		}
	}
	select {
	case <-a.c.booted:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the boot is not done: %w", context.Cause(ctx))
	}
}

func (a core) Rescan(ctx context.Context) error {
	if a.c.route.DashboardOnly {
		return nil // it has no profiles
	}
	if a.c.loop.Snapshot().Stopping {
		return supervisor.ErrStopping
	}
	w := a.c.keeper.watch()
	if w == nil {
		return errors.New("cannot look at the profiles: the boot is not done yet; try again")
	}
	if err := w.Rescan(ctx); err != nil {
		return fmt.Errorf("cannot look at the profiles: %w", err)
	}
	return nil
}

// Find looks for a profile that has just been made. A name can be that of its slot, or of a profile that is called like one.
func (a core) Find(ctx context.Context, name string) error {
	w := a.c.keeper.watch()
	if w == nil || a.c.route.DashboardOnly {
		return a.Rescan(ctx)
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if err := w.Find(ctx, profile); err != nil {
			return fmt.Errorf("cannot look for the profile: %w", err)
		}
	}
	if err := w.Find(ctx, name); err != nil {
		return fmt.Errorf("cannot look for the profile: %w", err)
	}
	return nil
}

func (a core) Config() []client.ConfigEntry {
	var out []client.ConfigEntry
	for _, e := range a.c.cfg.Load().Effective() {
		out = append(out, client.ConfigEntry{Key: e.Key, Value: e.Value, Origin: e.Origin})
	}
	return out
}

func (a core) Init() client.Init {
	c := a.c
	c.mu.Lock()
	defer c.mu.Unlock()
	info := client.Init{
		PID: os.Getpid(), Version: version.Get().String(), StartedAt: c.started, Home: c.cfg.Load().Home,
		Subreaper: os.Getpid() != 1, Goroutines: runtime.NumGoroutine(),
		Binary: c.images.exe, Image: c.images.number, ReexecError: c.images.refusal(),
		Warnings: slices.Clone(c.warnings), Boot: slices.Clone(c.phases), Repair: c.cloneRepair(),
	}
	return info
}

func (a core) Reload(ctx context.Context) ([]string, error) { return a.c.reload(ctx) }

// reloadAndSay is a reload nobody waits for.
func (c *container) reloadAndSay() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	changed, err := c.reload(ctx)
	if err != nil {
		c.say("[hinit] cannot reload: %v", err)
		return
	}
	c.say("[hinit] reloaded, %d settings changed", len(changed))
}

// reload reads the configuration anew and applies it to what starts from now on: services that are new are started,
// services that are gone are stopped, a changed definition takes effect at the next start of its service. A bad file
// changes nothing. What only a new container can change is said.
func (c *container) reload(ctx context.Context) ([]string, error) {
	if !c.reloads.TryLock() {
		return nil, errors.New("cannot reload: the boot or another reload is under way; try again")
	}
	defer c.reloads.Unlock()
	old := c.cfg.Load()
	cfg, err := config.Load(config.Options{Env: os.LookupEnv})
	if err != nil {
		return nil, err
	}
	var changed []string
	for _, d := range config.Diff(old, cfg) {
		changed = append(changed, d.Key)
		if slices.Contains(fixedKeys, d.Key) {
			return nil, fmt.Errorf("cannot change %s while the container runs; restart the container for that (nothing was changed)", d.Key)
		}
	}
	units := make(map[string]supervisor.Unit, len(cfg.Services))
	for _, name := range sortedKeys(cfg.Services) {
		u, err := c.serviceUnit(cfg, cfg.Services[name])
		if err != nil {
			return nil, fmt.Errorf("%w (nothing was changed)", err)
		}
		u.Needs = nil // the boot is over
		units[name] = u
	}
	c.cfg.Store(cfg)
	var problems []error
	for _, name := range sortedKeys(old.Services) {
		if _, stays := cfg.Services[name]; !stays {
			problems = append(problems, c.loop.Do(ctx, supervisor.Remove{Name: name}), c.withdraw(ctx, name))
		}
	}
	for _, name := range sortedKeys(units) {
		problems = append(problems, c.applyService(ctx, cfg, old, units[name]))
	}
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
	return changed, errors.Join(problems...)
}

// fixedKeys are read once, at the start of the container.
var fixedKeys = []string{
	"home", "agent.user", "profiles.marker", "shutdown.budget", "control.socket", "control.others",
	"logs.dir", "logs.console", "logs.max_line_kb", "logs.mask",
}

func (c *container) applyService(ctx context.Context, cfg, old *config.Config, u supervisor.Unit) error {
	name := u.Name
	s := cfg.Services[name]
	want := supervisor.WantDown
	if s.Enabled {
		want = supervisor.WantUp
	}
	before, known := old.Services[name]
	if scanner := c.s6.Load(); scanner != nil && scanner.Foreign(name) {
		return fmt.Errorf("cannot define service %q: a service directory has that name; remove it from the scan directory", name)
	}
	if err := c.register(ctx, u, want); err != nil {
		return err
	}
	if !known || before.Enabled != s.Enabled {
		c.publishService(ctx, cfg, s)
	}
	switch {
	case !known || before.Enabled == s.Enabled:
		return nil
	case s.Enabled:
		return c.loop.Do(ctx, supervisor.Start{Name: name})
	}
	return c.loop.Do(ctx, supervisor.Stop{Name: name})
}
