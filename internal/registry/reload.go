package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/supervisor"
)

// ReloadWithTimeout calls Reload, but returns at the latest when ctx ends. The reload then continues without the caller.
func (r *Registry) ReloadWithTimeout(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
	// The configuration may be on a disk that hangs. A reload always runs to its end, and only one at a time can hang.
	var did client.ReloadReply
	err = blocking.Wait(ctx, "the reload", func() (err error) {
		did, err = r.Reload(context.WithoutCancel(ctx), how)
		return err
	})
	if errors.Is(err, blocking.ErrTimedOut) {
		return client.ReloadReply{}, fmt.Errorf("%w; the reload continues", err)
	}
	return did, err
}

// ReloadAndLog reloads the configuration without a client, for instance after SIGHUP. It writes the result to the container
// log.
func (r *Registry) ReloadAndLog() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	did, err := r.Reload(ctx, client.Reload{})
	if err != nil {
		for line := range strings.Lines(err.Error()) { // err has one problem on each line
			r.options.Logger.Say("cannot reload: %s", strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "cannot reload: "))
		}
		return
	}
	r.options.Logger.Say("reloaded, %d settings changed", len(did.Changes))
	for _, s := range did.Plan {
		r.options.Logger.Say("%s %s %s", s.Op, s.Service, s.Effect)
	}
}

// Reload reads the configuration again. It starts new services and stops removed ones. A changed definition of a service
// applies from its next start. An invalid file changes nothing, and neither does a missing file unless how.Force is set. The
// reply also lists changed settings that need a new container.
//
// If root has changed the file, and only root can, an agent may not reload it. Root may have written only half of the file, and
// the limits and the isolation in the other half would be missing.
func (r *Registry) Reload(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
	if err := lockForReload(ctx, &r.reloadLock); err != nil {
		return out, err
	}
	defer r.reloadLock.Unlock()
	old := r.options.Config()
	cfg, err := r.readConfig(ctx, old, how.Force) // the disk may hang, so read the file before locking ChangeLock
	if err != nil {
		return out, err
	}
	if err := lockForReload(ctx, &r.ChangeLock); err != nil {
		return out, err
	}
	defer r.ChangeLock.Unlock()
	changed := config.Diff(old, cfg)
	if i := slices.IndexFunc(changed, func(key string) bool { return slices.Contains(startOnlyKeys, key) }); i >= 0 {
		return out, fmt.Errorf("cannot change %s while the container runs; restart the container for that (nothing was changed)", changed[i])
	}
	if !how.DryRun {
		r.PrepareCgroups(cfg)
	}
	plan, err := r.PlanReload(old, cfg)
	if err != nil {
		return out, fmt.Errorf("%w (nothing was changed)", err)
	}
	out = client.ReloadReply{Changes: changed, Settings: changed, DryRun: how.DryRun}
	if !r.options.ServesVolume() { // another init serves the volume, so this init has no services to change
		if !how.DryRun {
			r.options.SetConfig(cfg)
		}
		return out, nil
	}
	// the plan contains the settings of single services
	out.Settings = slices.DeleteFunc(slices.Clone(changed), func(key string) bool {
		return strings.HasPrefix(key, "services.") || strings.HasPrefix(key, "profiles.") && strings.Count(key, ".") > 1
	})
	if !how.DryRun {
		_ = r.Do(ctx, supervisor.Remark{Text: "the configuration is read again"})
		r.options.SetConfig(cfg)
		r.options.Health.Configure(cfg)
		err = r.ApplyReload(ctx, plan)
		r.Timetable.SetConfig(cfg)
	}
	out.Plan = plan.Steps(r.Snapshot(), !how.DryRun)
	return out, err
}

// requestedByAgent reports whether an agent, and not root, asks for a reload. It is false if hinit does not run as root,
// because then all clients are equal.
func requestedByAgent(ctx context.Context) bool {
	by := supervisor.AuthorOf(ctx)
	return by != nil && by.UID != 0 && os.Getuid() == 0
}

// lockForReload locks a mutex for a reload. For an agent, it fails if the mutex is locked; for any other client it waits. So an
// agent that reloads all the time can't keep root from a reload.
func lockForReload(ctx context.Context, lock *sync.Mutex) error {
	if !requestedByAgent(ctx) {
		lock.Lock()
	} else if !lock.TryLock() {
		return errors.New("cannot reload: the boot or another reload is under way; try again")
	}
	return nil
}

// LockChanges locks ChangeLock, or returns an error if ctx ends first. It calls Lock, which serves callers in their order.
// With TryLock in a loop, an agent that reloads all the time could get the lock each time.
func (r *Registry) LockChanges(ctx context.Context) (unlock func(), err error) {
	locked := make(chan struct{})
	guard.Go("waiting for a reload", func() {
		r.ChangeLock.Lock()
		if !pause.Send(ctx, locked, struct{}{}) {
			r.ChangeLock.Unlock()
		}
	})
	if !pause.Until(ctx, locked) {
		return nil, errors.New("a reload is under way; try again")
	}
	return r.ChangeLock.Unlock, nil
}

// readConfig reads the configuration file again. A missing file is an error or, if force is set, means the default
// configuration.
func (r *Registry) readConfig(ctx context.Context, old *config.Config, force bool) (*config.Config, error) {
	options := config.Options{}
	if r.options.ServicesOnly {
		options = config.Options{Path: old.Path, ServicesOnly: true}
	}
	if requestedByAgent(ctx) {
		options.Current = old
	}
	cfg, err := LoadConfig(options)
	if old.Path == "" || !errors.Is(err, fs.ErrNotExist) && (err != nil || cfg.Path != "") {
		return cfg, err
	}
	if !force {
		return nil, fmt.Errorf("cannot read configuration %q: it is gone, and without it its services would be stopped (nothing was changed); put it back, or: hinit reload --force", old.Path)
	}
	options.Content = []byte{}
	return LoadConfig(options)
}

// startOnlyKeys lists settings that hinit reads only at the start of the container. A reload that changes one of them fails.
var startOnlyKeys = []string{
	"home", "agent.user", "services." + config.LeaseName + ".enabled", "profiles.marker", "profiles.max", "shutdown.budget", "start.parallel", "control.socket", "control.others",
	"logs.dir", "logs.console", "logs.console_stall", "logs.max_line_kb", "logs.mask",
}

// LoadConfig calls [config.Load] through package blocking, because the file may be on a disk that hangs.
func LoadConfig(o config.Options) (*config.Config, error) {
	return blocking.Get(blocking.Foreign, func() (*config.Config, error) { return config.Load(o) })
}

// ReloadPlan contains the changes of a new configuration to each gateway, and to each service of hinit.yaml.
type ReloadPlan struct {
	oldConfig, newConfig *config.Config
	services             map[string]supervisor.Unit // units of the services of hinit.yaml, in the new configuration

	oldUnits, newUnits map[string]supervisor.Unit // units of services and gateways by name, in the old and the new configuration
}

// PlanReload compares two configurations, and changes nothing. The error says why a service of cfg can't run.
func (r *Registry) PlanReload(old, cfg *config.Config) (*ReloadPlan, error) {
	services, err := r.options.Units.Services(cfg)
	if err != nil {
		return nil, err
	}
	p := &ReloadPlan{oldConfig: old, newConfig: cfg, services: services, oldUnits: make(map[string]supervisor.Unit), newUnits: maps.Clone(services)}
	for _, s := range old.Services {
		if u, err := r.options.Units.Service(old, s); err == nil { // an error means that the user of the service does not exist
			p.oldUnits[s.Name] = u
		}
	}
	for _, s := range r.Snapshot().Services {
		if profile, err := r.options.Store.Profile(s.Profile); err == nil && s.Kind == supervisor.KindGateway {
			exports := r.Exports(s.Name)
			p.oldUnits[s.Name], p.newUnits[s.Name] = r.options.Units.Gateway(old, profile, exports), r.options.Units.Gateway(cfg, profile, exports)
		}
	}
	return p, nil
}

// ApplyReload carries out a plan. The new configuration must already be the current one.
func (r *Registry) ApplyReload(ctx context.Context, p *ReloadPlan) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(p.oldConfig.Services)) {
		if _, stays := p.newConfig.Services[name]; !stays {
			problems = append(problems, r.Do(ctx, supervisor.Remove{Name: name}), r.RemoveSlot(ctx, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.services)) {
		if f := r.currentSlotMaker(); f != nil && f.IsForeign(name) {
			problems = append(problems, fmt.Errorf("cannot define service %q: a service directory has that name; remove it from the scan directory", name))
			continue
		}
		problems = append(problems, r.changeService(ctx, p.newConfig, p.oldConfig, p.services[name]))
	}
	return errors.Join(append(problems, r.redefineGateways(ctx))...)
}

// Steps describes the plan, one step for each service, sorted by name. now is the current state of the services. done means
// that the plan has been carried out.
func (p *ReloadPlan) Steps(now *supervisor.Snapshot, done bool) []client.ReloadStep {
	names := maps.Clone(p.oldUnits)
	maps.Copy(names, p.newUnits)
	steps := []client.ReloadStep{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if op, what := p.describeStep(name, now.Find(name), done); op != "" {
			steps = append(steps, client.ReloadStep{Op: op, Service: name, Effect: what})
		}
	}
	return steps
}

// describeStep describes the change of one service. v is the service's current state, or nil if it is not registered. op is ""
// without a change.
func (p *ReloadPlan) describeStep(name string, v *supervisor.Service, done bool) (op, what string) {
	before, was := p.oldUnits[name]
	after, is := p.newUnits[name]
	tense := func(past, present string) string {
		if done {
			return past
		}
		return "would " + present
	}
	old, def := p.oldConfig.Services[name], p.newConfig.Services[name]
	switch {
	case was && !is:
		return "-", tense("stopped", "be stopped") + ", it is not in the file any more"
	case !was && is && def.Enabled && !def.StartsAtBoot():
		return "+", tense("added", "be added") + ", " + describeTaskStart(def)
	case !was && is && def.Enabled:
		return "+", tense("started", "be started")
	case !was && is:
		return "+", tense("added", "be added") + ", it is not enabled"
	case old.Enabled && !def.Enabled:
		return "-", tense("stopped", "be stopped") + ", it is not enabled any more"
	case !old.Enabled && def.Enabled && !def.StartsAtBoot():
		return "+", tense("enabled", "be enabled") + ", " + describeTaskStart(def)
	case !old.Enabled && def.Enabled:
		return "+", tense("started", "be started") + ", it is enabled now"
	}
	changed := tense("changed", "change")
	runs := v != nil && v.PID != 0
	// these settings reach the process as environment variables
	env := old.Notify.Protocol != def.Notify.Protocol || old.Notify.Watchdog != def.Notify.Watchdog
	switch spec := env || !before.Spec.StartsTheSame(after.Spec); {
	case spec && runs && (v.DefinitionChanged || !done):
		return "~", changed + ", restart to apply"
	case spec && runs:
		return "~", changed + " to what runs"
	case spec:
		return "~", changed + ", in force when it starts"
	case !reflect.DeepEqual(old.Task.Schedule, def.Task.Schedule):
		return "~", changed + " its schedule, in force at once"
	case !slices.Equal(before.Policy.Needs, after.Policy.Needs) && (v == nil || v.State != supervisor.Waiting):
		return "~", changed + " what it needs, in force when it starts"
	case !reflect.DeepEqual(before.Policy, after.Policy), before.LogFile != after.LogFile, !reflect.DeepEqual(old.Logs, def.Logs), old.Task != def.Task:
		return "~", changed + ", in force at once"
	case runs && v.DefinitionChanged:
		return "~", "changed before, restart to apply"
	}
	return "", ""
}

// describeTaskStart says when a task runs. A reload starts no task.
func describeTaskStart(s config.Service) string {
	if s.Task.Schedule.Cron == "" {
		return "it runs when it is asked for: hinit run-once " + s.Name
	}
	return "it runs by its schedule"
}
