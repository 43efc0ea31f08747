package container

import (
	"hinit/internal/config"
	"hinit/internal/container/memwatch"
	"hinit/internal/proc"
	"hinit/supervisor"
)

// newMemory makes the watcher of a container whose loop is made.
func (c *container) newMemory() *memwatch.Watcher {
	var meter *proc.Meter // nobody needs it where nothing is limited
	return memwatch.New(memwatch.Options{
		Snapshot: c.loop.Snapshot, History: c.loop.History(), Post: c.loop.Post, Ended: c.loop.Ended(),
		Measure: func(mains []int) []uint64 {
			if meter == nil {
				meter = proc.NewMeter()
			}
			return meter.Measure(mains)
		},
	})
}

// limitMemory puts the limits of a configuration in force.
func (c *container) limitMemory(cfg *config.Config) {
	limited := cfg.Agent.Memory.Set()
	for _, p := range cfg.Profiles.Own {
		limited = limited || p.Memory.Set()
	}
	for _, s := range cfg.Services {
		limited = limited || s.Memory.Set()
	}
	c.memory.Set(func(v *supervisor.Service) config.Memory {
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
