package registry

import (
	"context"
	"errors"
	"maps"
	"slices"

	"hinit/internal/config"
	"hinit/supervisor"
)

// RegisterServices registers all services of hinit.yaml, and makes their s6 service directories. If some services fail, it
// registers the others, and joins the errors.
func (r *Registry) RegisterServices(ctx context.Context, cfg *config.Config) error {
	r.PrepareCgroups(cfg)
	var problems []error
	var answers []func() error
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		s := cfg.Services[name]
		u, err := r.options.Units.Service(cfg, s)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		answers = append(answers, r.registerService(ctx, cfg, s, u))
		r.makeSlot(ctx, r.serviceSlot(cfg, s), false)
	}
	for _, answer := range answers {
		if err := answer(); err != nil && (len(problems) == 0 || !errors.Is(err, supervisor.ErrStopping)) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// RegisterLease registers the service that holds the lease of the volume, if hinit.yaml has one. Call it before other
// services are registered.
func (r *Registry) RegisterLease(ctx context.Context, cfg *config.Config) error {
	s := cfg.Services[config.LeaseName]
	if !s.Enabled {
		return nil
	}
	u, err := r.options.Units.Service(cfg, s)
	if err != nil {
		return err
	}
	return r.registerService(ctx, cfg, s, u)()
}

// registerService registers one service of hinit.yaml with its schedule.
func (r *Registry) registerService(ctx context.Context, cfg *config.Config, s config.Service, u supervisor.Unit) (answer func() error) {
	if u.Spec.Dir != s.Cwd && cfg.IsSet("services."+s.Name+".cwd") {
		r.options.Logger.Warn("%s runs as root, so it starts in / and not in %s, which the agent's user can write", s.Name, s.Cwd)
	}
	if warning := r.options.Units.WarnOfProgram(s.Name, u); warning != "" {
		r.options.Logger.Warn("%s", warning)
	}
	want := supervisor.WantDown
	if s.StartsAtBoot() {
		want = supervisor.WantUp
	}
	return r.register(ctx, u, want)
}

// changeService registers a service of a new configuration. If its desired state has changed, it starts or stops the service.
func (r *Registry) changeService(ctx context.Context, cfg, old *config.Config, u supervisor.Unit) error {
	s := cfg.Services[u.Name]
	before, known := old.Services[u.Name]
	if err := r.registerService(ctx, cfg, s, u)(); err != nil {
		return err
	}
	if !known || before.Enabled != s.Enabled {
		r.publishSlot(ctx, cfg, s)
	}
	switch {
	case !known || before.Enabled == s.Enabled, s.Enabled && !s.StartsAtBoot():
		return nil
	case s.Enabled:
		return r.Do(ctx, supervisor.Start{Name: u.Name})
	}
	return r.Do(ctx, supervisor.Stop{Name: u.Name})
}

// publishSlot makes the s6 service directory of a service of hinit.yaml, or updates the down file of an existing one.
func (r *Registry) publishSlot(ctx context.Context, cfg *config.Config, s config.Service) {
	r.makeSlot(ctx, r.serviceSlot(cfg, s), true)
	if f := r.currentSlotMaker(); f != nil {
		f.SetDown(s.Name, !s.StartsAtBoot())
	}
}
