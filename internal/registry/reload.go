package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/supervisor"
)

// ReloadInTime works like Reload, but also returns when ctx ends. The reload then continues without the caller.
func (r *Registry) ReloadInTime(ctx context.Context, how client.Reload) (out client.ReloadReply, err error) {
	// The configuration may be on a disk that hangs. A reload that has begun is always finished, and only one at a time can hang.
	var did client.ReloadReply
	err = blocking.Wait(ctx, "the reload", func() (err error) {
		did, err = r.Reload(context.WithoutCancel(ctx), how)
		return err
	})
	if errors.Is(err, blocking.ErrSlow) {
		return client.ReloadReply{}, fmt.Errorf("%w; it goes on", err)
	}
	return did, err
}

// ReloadAndSay reloads the configuration without a client, for instance after SIGHUP. It writes the result to the container log.
func (r *Registry) ReloadAndSay() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	did, err := r.Reload(ctx, client.Reload{})
	if err != nil {
		for line := range strings.Lines(err.Error()) { // one error per line
			r.o.Logger.Say("cannot reload: %s", strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "cannot reload: "))
		}
		return
	}
	r.o.Logger.Say("reloaded, %d settings changed", len(did.Changes))
	for _, s := range did.Plan {
		r.o.Logger.Say("%s %s %s", s.Op, s.Service, s.What)
	}
}

// Reload reads the configuration again. It starts new services and stops removed ones. A changed definition takes effect at the
// next start. If the file is invalid or missing, nothing changes, unless how.Force allows a missing file. The reply also lists
// changed settings that take effect only in a new container.
func (r *Registry) Reload(ctx context.Context, how client.Reload) (client.ReloadReply, error) {
	none := client.ReloadReply{}
	if !r.ChangeLock.TryLock() {
		return none, errors.New("cannot reload: the boot or another reload is under way; try again")
	}
	defer r.ChangeLock.Unlock()
	old := r.o.Config()
	options := config.Options{}
	if r.o.Plain {
		options = config.Options{Path: old.Path, Plain: true}
	}
	cfg, err := LoadConfig(options)
	if old.Path != "" && (err == nil && cfg.Path == "" || errors.Is(err, fs.ErrNotExist)) {
		if !how.Force {
			return none, fmt.Errorf("cannot read configuration %q: it is gone, and without it its services would be stopped (nothing was changed); put it back, or: hinit reload --force", old.Path)
		}
		options.Text = []byte{}
		cfg, err = LoadConfig(options)
	}
	if err != nil {
		return none, err
	}
	changed := config.Diff(old, cfg)
	for _, key := range changed {
		if slices.Contains(fixedKeys, key) {
			return none, fmt.Errorf("cannot change %s while the container runs; restart the container for that (nothing was changed)", key)
		}
	}
	if !how.DryRun {
		r.PrepareCgroups(cfg)
	}
	plan, err := r.Plan(old, cfg)
	if err != nil {
		return none, fmt.Errorf("%w (nothing was changed)", err)
	}
	out := client.ReloadReply{Changes: changed, Settings: changed, DryRun: how.DryRun}
	if !r.o.Serves() { // this init does not serve the volume, so it has no services
		if !how.DryRun {
			r.o.SetConfig(cfg)
		}
		return out, nil
	}
	out.Settings = slices.DeleteFunc(slices.Clone(changed), func(key string) bool { // the plan reports settings of single services
		return strings.HasPrefix(key, "services.") || strings.HasPrefix(key, "profiles.") && strings.Count(key, ".") > 1
	})
	if !how.DryRun {
		_ = r.Do(ctx, supervisor.Remark{Text: "the configuration is read again"}) // fails only if the container ends
		r.o.SetConfig(cfg)
		r.o.Health.Configure(cfg)
		err = r.Apply(ctx, plan)
		r.Timetable.Change(cfg)
	}
	out.Plan = plan.Steps(r.Snapshot(), !how.DryRun)
	return out, err
}

// fixedKeys are settings that are read only when the container starts. A reload that changes one of them fails.
var fixedKeys = []string{
	"home", "agent.user", "services." + config.LeaseName + ".enabled", "profiles.marker", "profiles.max", "shutdown.budget", "start.parallel", "control.socket", "control.others",
	"logs.dir", "logs.console", "logs.console_stall", "logs.max_line_kb", "logs.mask",
}

// LoadConfig calls [config.Load] within the limits of internal/blocking, because the file may be on a disk that hangs.
func LoadConfig(o config.Options) (*config.Config, error) {
	return blocking.Get(blocking.Foreign, func() (*config.Config, error) { return config.Load(o) })
}
