package units_test

import (
	"testing"

	"hinit/profiles"
)

// The priority of a service must raise or lower its oom_score_adj. Otherwise the kernel may kill a critical gateway before a
// larger one of low priority.
func TestTheKernelKillsTheLeastImportantFirst(t *testing.T) {
	m, cfg, home := newTestMaker(t, `
profiles: {plain: {}, low: {priority: low}, high: {priority: high}, critical: {priority: critical}, chosen: {priority: critical, oom_score: 860}}
services:
  plain: {command: [x]}
  low: {command: [x], priority: low}
  critical: {command: [x], priority: critical}
`)
	// 0 means 800, the value of each gateway without a priority
	for name, want := range map[string]int{"plain": 0, "low": 845, "high": 780, "critical": 755, "chosen": 860} {
		u := m.Gateway(cfg, profiles.Profile{Name: name, Home: home + "/profiles/" + name}, nil)
		if u.Spec.OOMIncrease != want {
			t.Errorf("the gateway %s adds %d, want %d", name, u.Spec.OOMIncrease, want)
		}
	}
	for name, want := range map[string]int{"plain": 0, "low": 795, "critical": 705} {
		u, err := m.Service(cfg, cfg.Services[name])
		if err != nil || u.Spec.OOMIncrease != want {
			t.Errorf("the service %s adds %d, want %d (%v)", name, u.Spec.OOMIncrease, want, err)
		}
	}
}
