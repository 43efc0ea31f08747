package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// Plan is the difference between two configurations: the change of each gateway and each service of hinit.yaml.
type Plan struct {
	old, new *config.Config
	services map[string]supervisor.Unit // units of the services of hinit.yaml in the new configuration

	before, after map[string]supervisor.Unit // units of services and gateways in the old and the new configuration, by name
}

// Plan compares the configurations old and cfg. It changes nothing. The error says why a service in cfg can't run.
func (r *Registry) Plan(old, cfg *config.Config) (*Plan, error) {
	services, err := r.o.Units.Services(cfg)
	if err != nil {
		return nil, err
	}
	p := &Plan{old: old, new: cfg, services: services, before: make(map[string]supervisor.Unit), after: maps.Clone(services)}
	for _, s := range old.Services {
		if u, err := r.o.Units.Service(old, s); err == nil { // an error means that the service's user does not exist
			p.before[s.Name] = u
		}
	}
	for _, s := range r.Snapshot().Services {
		if profile, err := r.o.Store.Profile(s.Profile); err == nil && s.Kind == supervisor.KindGateway {
			exports := r.Exports(s.Name)
			p.before[s.Name], p.after[s.Name] = r.o.Units.Gateway(old, profile, exports), r.o.Units.Gateway(cfg, profile, exports)
		}
	}
	return p, nil
}

// Apply carries out a plan. The new configuration must already be the current one.
func (r *Registry) Apply(ctx context.Context, p *Plan) error {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(p.old.Services)) {
		if _, stays := p.new.Services[name]; !stays {
			problems = append(problems, r.Do(ctx, supervisor.Remove{Name: name}), r.Withdraw(ctx, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.services)) {
		if f := r.currentFollower(); f != nil && f.Foreign(name) {
			problems = append(problems, fmt.Errorf("cannot define service %q: a service directory has that name; remove it from the scan directory", name))
			continue
		}
		problems = append(problems, r.changeService(ctx, p.new, p.old, p.services[name]))
	}
	return errors.Join(append(problems, r.redefineAll(ctx))...)
}

// Steps describes the plan, one step for each service, sorted by name. The argument now is the current state of the services.
// done is true if the plan has been carried out.
func (p *Plan) Steps(now *supervisor.Snapshot, done bool) []client.ReloadStep {
	names := maps.Clone(p.before)
	maps.Copy(names, p.after)
	steps := []client.ReloadStep{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if op, what := p.step(name, now.Find(name), done); op != "" {
			steps = append(steps, client.ReloadStep{Op: op, Service: name, What: what})
		}
	}
	return steps
}

// step describes the change of one service by the plan. v is the service's current state, or nil if the supervisor does not have
// the service. op is "" if nothing changes.
func (p *Plan) step(name string, v *supervisor.Service, done bool) (op, what string) {
	before, was := p.before[name]
	after, is := p.after[name]
	tense := func(past, present string) string {
		if done {
			return past
		}
		return "would " + present
	}
	old, def := p.old.Services[name], p.new.Services[name]
	switch {
	case was && !is:
		return "-", tense("stopped", "be stopped") + ", it is not in the file any more"
	case !was && is && def.Enabled && !def.StartsAtBoot():
		return "+", tense("added", "be added") + ", " + taskRuns(def)
	case !was && is && def.Enabled:
		return "+", tense("started", "be started")
	case !was && is:
		return "+", tense("added", "be added") + ", it is not enabled"
	case old.Enabled && !def.Enabled:
		return "-", tense("stopped", "be stopped") + ", it is not enabled any more"
	case !old.Enabled && def.Enabled && !def.StartsAtBoot():
		return "+", tense("enabled", "be enabled") + ", " + taskRuns(def)
	case !old.Enabled && def.Enabled:
		return "+", tense("started", "be started") + ", it is enabled now"
	}
	changed := tense("changed", "change")
	runs := v != nil && v.PID != 0
	env := old.Notify.Protocol != def.Notify.Protocol || old.Notify.Watchdog != def.Notify.Watchdog // these settings are passed in its environment
	switch spec := env || !before.Spec.Same(after.Spec); {
	case spec && runs && (v.Drifted || !done):
		return "~", changed + ", restart to apply"
	case spec && runs:
		return "~", changed + " to what runs"
	case spec:
		return "~", changed + ", in force when it starts"
	case !reflect.DeepEqual(old.Task.Schedule, def.Task.Schedule):
		return "~", changed + " its schedule, in force at once"
	case !slices.Equal(before.Policy.Needs, after.Policy.Needs) && (v == nil || v.State != supervisor.Waiting):
		return "~", changed + " what it needs, in force when it starts"
	case !reflect.DeepEqual(before.Policy, after.Policy), before.Log != after.Log, !reflect.DeepEqual(old.Logs, def.Logs), old.Task != def.Task:
		return "~", changed + ", in force at once"
	case runs && v.Drifted:
		return "~", "changed before, restart to apply"
	}
	return "", ""
}

// taskRuns describes when a task runs that is not started immediately.
func taskRuns(s config.Service) string {
	if s.Task.Schedule.Cron == "" {
		return "it runs when it is asked for: hinit run-once " + s.Name
	}
	return "it runs by its schedule"
}
