package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/control"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

// core is the container as the control API sees it.
type core struct{ c *container }

func (a core) Snapshot() *supervisor.Snapshot { return a.c.loop.Snapshot() }
func (a core) Settle() time.Duration          { return a.c.cfg.Load().Agent.Settle }
func (a core) Note(v *supervisor.Service) string {
	return a.c.keeper.servedBy(v)
}

func (a core) News() <-chan struct{}     { return a.c.loop.News() }
func (a core) History() *supervisor.Ring { return a.c.loop.History() }
func (a core) Orphans() uint64           { return a.c.loop.Orphans() }

// Ping answers when the supervisor's loop does.
func (a core) Ping(ctx context.Context) error { return a.c.loop.Do(ctx, supervisor.Tick{}) }

func (a core) Command(ctx context.Context, verb, service string) error {
	return a.c.keeper.command(ctx, verb, service)
}

// hasBooted says whether all services are known.
func (c *container) hasBooted() bool {
	select {
	case <-c.booted:
		return true
	default:
		return false
	}
}

// AwaitBoot implements control.Booter.
func (a core) AwaitBoot(ctx context.Context, pid int) error {
	if a.c.hasBooted() {
		return nil
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
	if !a.c.route.Load().HasProfiles() {
		return nil // it has no profiles
	}
	if a.c.lease.Check() != nil {
		return nil // nothing that it would find is supervised here
	}
	if a.c.loop.Snapshot().Stopping {
		return supervisor.ErrStopping
	}
	w := a.c.keeper.watch()
	if w == nil {
		return errors.New("cannot look at the profiles: the boot is not done yet; try again")
	}
	return silence(ctx, w.Rescan(ctx))
}

// silence says so when a look at the data volume has not ended in time.
func silence(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot look at the profiles: the data volume does not answer: %w", context.Cause(ctx))
	}
	return err
}

// Find looks for a profile that has just been made. A name can be that of its slot, or of a profile that is called like one.
func (a core) Find(ctx context.Context, name string) error {
	if err := a.c.lease.Check(); err != nil {
		return control.Elsewhere(err)
	}
	w := a.c.keeper.watch()
	if w == nil || !a.c.route.Load().HasProfiles() {
		return a.Rescan(ctx)
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if err := w.Find(ctx, profile); err != nil {
			return silence(ctx, err)
		}
	}
	return silence(ctx, w.Find(ctx, name))
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
	crowded := ""
	_ = blocking.Do(blocking.Short, func() error {
		crowded = crowd("/sys/fs/cgroup", "/proc", c.loop.Snapshot().Services)
		return nil
	})
	plain := ""
	if c.route.Load().Plain {
		plain = c.cfg.Load().Path
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	info := client.Init{
		Plain: plain,
		PID:   os.Getpid(), Version: version.Get().String(), StartedAt: c.started, Home: c.cfg.Load().Home,
		Subreaper: os.Getpid() != 1, Goroutines: runtime.NumGoroutine(), Booting: !c.hasBooted(), Hook: c.expected.hook(),
		Binary: c.images.exe, BinaryID: c.images.id, Image: c.images.number, ReexecError: c.images.refusal(),
		Warnings: slices.Clone(c.warnings), Boot: slices.Clone(c.phases), BootProfiles: c.bootProfiles(), Repair: c.cloneRepair(),
	}
	if crowded != "" {
		info.Warnings = append(info.Warnings, crowded)
	}
	if c.route.Load().HasProfiles() {
		info.Lease = c.leaseStatus()
	}
	return info
}

func (a core) Reload(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
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
			c.say("[hinit] cannot reload: %s", strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "cannot reload: "))
		}
		return
	}
	c.say("[hinit] reloaded, %d settings changed", len(did.Changes))
	for _, s := range did.Plan {
		c.say("[hinit] %s %s %s", s.Op, s.Service, s.What)
	}
}

// reload reads the configuration anew and applies it to what starts from now on: services that are new are started,
// services that are gone are stopped, a changed definition takes effect at the next start of its service. A bad file
// changes nothing, and a file that is gone is a bad one unless that is meant. What only a new container can change is said.
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
	units, err := c.unitsOf(cfg)
	if err != nil {
		return none, fmt.Errorf("%w (nothing was changed)", err)
	}
	if !c.alone.Load() { // it has no services
		if !how.DryRun {
			c.cfg.Store(cfg)
		}
		return client.ReloadReply{Changes: changed, Settings: changed, DryRun: how.DryRun}, nil
	}
	plan := c.planReload(old, cfg, units)
	if how.DryRun {
		return client.ReloadReply{Changes: changed, Plan: plan.steps(c.loop.Snapshot(), false), Settings: others(changed), DryRun: true}, nil
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
	out := client.ReloadReply{Changes: changed, Plan: plan.steps(c.loop.Snapshot(), true), Settings: others(changed)}
	return out, errors.Join(problems...)
}

// fixedKeys are read once, at the start of the container.
var fixedKeys = []string{
	"home", "agent.user", "profiles.marker", "profiles.max", "shutdown.budget", "control.socket", "control.others",
	"logs.dir", "logs.console", "logs.max_line_kb", "logs.mask",
}

func (c *container) applyService(ctx context.Context, cfg, old *config.Config, u supervisor.Unit) error {
	name := u.Name
	s := cfg.Services[name]
	c.sayRootsDir(cfg, u)
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
