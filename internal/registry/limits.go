package registry

import (
	"strconv"

	"hinit/client"
	"hinit/internal/config"
	"hinit/supervisor"
)

// Limits lists the limits of a service that need a control group, and the mechanism that enforces each limit in this container.
func (r *Registry) Limits(v *supervisor.Service) (out []client.Limit) {
	cfg := r.o.Config()
	var own config.ProcessSettings
	user := false
	switch v.Kind {
	case supervisor.KindGateway:
		own, user = cfg.ProfileOf(v.Profile).ProcessSettings, cfg.IsolationOf(v.Profile).Mode == config.IsolationUser
	case supervisor.KindService:
		own = cfg.Services[v.Name].ProcessSettings
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
	}
	for _, l := range []struct{ controller, key, value string }{
		{"memory", "memory.high", own.Memory.High.Text()},
		{"memory", "memory.max", own.Memory.Max.Text()},
		{"cpu", "cpu.weight", strconv.Itoa(own.Priority.CPUWeight)},
		{"pids", "pids.max", strconv.Itoa(own.Priority.MaxPIDs)},
	} {
		if l.value != "0" {
			out = append(out, client.Limit{Key: l.key, Value: l.value, By: r.o.Units.EnforcedBy(v.Name, l.controller, v.PID, user)})
		}
	}
	return out
}

// PrepareCgroups prepares the container's control group for child groups, if a service of the configuration needs its own
// group. The caller holds the mutex ChangeLock.
func (r *Registry) PrepareCgroups(cfg *config.Config) {
	if why := r.o.Units.PrepareCgroup(cfg); why != nil {
		r.o.Logger.Say("limits: services have no control groups of their own: %v; hinit measures memory itself, see: hinit doctor", why)
	}
}
