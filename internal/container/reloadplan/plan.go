// Package reloadplan says what a reload of the configuration does to each service. It compares definitions, does nothing, and owns no goroutine.
package reloadplan

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// Plan has the definitions before and after a reload: gateways and the services of hinit.yaml, by name.
type Plan struct {
	Before, After map[string]supervisor.Unit
	Old, New      *config.Config
}

// Steps tells the plan, in the order of the names. now is how the services are: before the plan is carried out, or after, as done says.
func (p Plan) Steps(now *supervisor.Snapshot, done bool) []client.ReloadStep {
	names := maps.Clone(p.Before)
	maps.Copy(names, p.After)
	steps := []client.ReloadStep{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if op, what := p.step(name, now.Find(name), done); op != "" {
			steps = append(steps, client.ReloadStep{Op: op, Service: name, What: what})
		}
	}
	return steps
}

// step is what becomes of one service, v; "" for nothing.
func (p Plan) step(name string, v *supervisor.Service, done bool) (op, what string) {
	before, was := p.Before[name]
	after, is := p.After[name]
	tense := func(past, present string) string {
		if done {
			return past
		}
		return "would " + present
	}
	old, def := p.Old.Services[name], p.New.Services[name]
	switch {
	case was && !is:
		return "-", tense("stopped", "be stopped") + ", it is not in the file any more"
	case !was && is && def.Enabled && !def.WantedUp():
		return "+", tense("added", "be added") + ", " + taskRuns(def)
	case !was && is && def.Enabled:
		return "+", tense("started", "be started")
	case !was && is:
		return "+", tense("added", "be added") + ", it is not enabled"
	case old.Enabled && !def.Enabled:
		return "-", tense("stopped", "be stopped") + ", it is not enabled any more"
	case !old.Enabled && def.Enabled && !def.WantedUp():
		return "+", tense("enabled", "be enabled") + ", " + taskRuns(def)
	case !old.Enabled && def.Enabled:
		return "+", tense("started", "be started") + ", it is enabled now"
	}
	changed := tense("changed", "change")
	runs := v != nil && v.PID != 0
	env := old.Notify.Protocol != def.Notify.Protocol || old.Notify.Watchdog != def.Notify.Watchdog // which it finds in its environment
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

// taskRuns says when a task runs that is not started now.
func taskRuns(s config.Service) string {
	if s.Task.Schedule.Cron == "" {
		return "it runs when it is asked for: hinit run-once " + s.Name
	}
	return "it runs by its schedule"
}

// Settings are those of the changed keys that are of no service alone.
func Settings(changed []string) []string {
	return slices.DeleteFunc(slices.Clone(changed), func(key string) bool {
		return strings.HasPrefix(key, "services.") || strings.HasPrefix(key, "profiles.") && strings.Count(key, ".") > 1
	})
}
