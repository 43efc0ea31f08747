package container

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// reloadPlan is what a reload does, service by service: the definitions before and after, compared.
type reloadPlan struct {
	before, after map[string]supervisor.Unit // gateways and services of hinit.yaml
	old, new      *config.Config
}

// unitsOf are the services as a configuration defines them.
func (c *container) unitsOf(cfg *config.Config) (map[string]supervisor.Unit, error) {
	units := make(map[string]supervisor.Unit, len(cfg.Services))
	for _, name := range sortedKeys(cfg.Services) {
		u, err := c.serviceUnit(cfg, cfg.Services[name])
		if err != nil {
			return nil, err
		}
		units[name] = u
	}
	return units, nil
}

// planReload compares two configurations. units are the services of the new one.
func (c *container) planReload(old, cfg *config.Config, units map[string]supervisor.Unit) reloadPlan {
	p := reloadPlan{before: make(map[string]supervisor.Unit), after: make(map[string]supervisor.Unit), old: old, new: cfg}
	maps.Copy(p.after, units)
	for _, s := range old.Services {
		if u, err := c.serviceUnit(old, s); err == nil { // else a user that it names is gone
			p.before[s.Name] = u
		}
	}
	for _, s := range c.loop.Snapshot().Services {
		profile, err := c.store.Profile(s.Profile)
		if s.Kind != supervisor.KindGateway || err != nil {
			continue
		}
		exports := c.exports(s.Profile)
		p.before[s.Name], p.after[s.Name] = c.gatewayUnit(old, profile, exports), c.gatewayUnit(cfg, profile, exports)
	}
	return p
}

// steps tells the plan, in the order of the names. now is how the services are: before it is carried out, or after.
func (p reloadPlan) steps(now *supervisor.Snapshot, done bool) []client.ReloadStep {
	names := sortedKeys(p.before)
	for name := range p.after {
		if _, known := p.before[name]; !known {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	steps := []client.ReloadStep{}
	for _, name := range names {
		if op, what := p.step(name, now.Find(name), done); op != "" {
			steps = append(steps, client.ReloadStep{Op: op, Service: name, What: what})
		}
	}
	return steps
}

// step is what becomes of one service, v; "" for nothing.
func (p reloadPlan) step(name string, v *supervisor.Service, done bool) (op, what string) {
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
	case !was && is && def.Enabled:
		return "+", tense("started", "be started")
	case !was && is:
		return "+", tense("added", "be added") + ", it is not enabled"
	case old.Enabled && !def.Enabled:
		return "-", tense("stopped", "be stopped") + ", it is not enabled any more"
	case !old.Enabled && def.Enabled:
		return "+", tense("started", "be started") + ", it is enabled now"
	}
	changed := tense("changed", "change")
	runs := v != nil && v.PID != 0
	switch spec := !before.Spec.Same(after.Spec); {
	case spec && runs && (v.Drifted || !done):
		return "~", changed + ", restart to apply"
	case spec && runs:
		return "~", changed + " to what runs"
	case spec:
		return "~", changed + ", in force when it starts"
	case !reflect.DeepEqual(before.Policy, after.Policy), before.Log != after.Log, !reflect.DeepEqual(old.Logs, def.Logs):
		return "~", changed + ", in force at once"
	case runs && v.Drifted:
		return "~", "changed before, restart to apply"
	}
	return "", ""
}

// others are the keys that are of no service alone.
func others(changed []string) []string {
	return slices.DeleteFunc(slices.Clone(changed), func(key string) bool { return strings.HasPrefix(key, "services.") })
}
