package health

import (
	"hinit/internal/config"
	"hinit/internal/container/memwatch"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// newMemory makes what watches the limits of memory.
func (h *Health) newMemory() *memwatch.Watcher {
	var meter *proc.Meter // nobody needs it where nothing is limited
	return memwatch.New(memwatch.Options{
		Snapshot: h.o.Loop.Snapshot, History: h.o.Loop.History(), Post: h.o.Loop.Post, Ended: h.o.Loop.Ended(),
		Measure: func(mains []int) []uint64 {
			if meter == nil {
				meter = proc.NewMeter()
			}
			return meter.Measure(mains)
		},
	})
}

// limitMemory puts the limits of a configuration in force.
func (h *Health) limitMemory(cfg *config.Config) {
	limited := cfg.Agent.Memory.Set()
	for _, p := range cfg.Profiles.Own {
		limited = limited || p.Memory.Set()
	}
	for _, s := range cfg.Services {
		limited = limited || s.Memory.Set()
	}
	h.memory.Set(func(v *supervisor.Service) config.Memory {
		switch v.Kind {
		case supervisor.KindGateway:
			return cfg.ProfileOf(v.Profile).Memory
		case supervisor.KindService:
			return cfg.Services[v.Name].Memory
		case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
		}
		return config.Memory{}
	}, limited)
}
