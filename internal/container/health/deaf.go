package health

import (
	"maps"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/probe"
	"hinit/supervisor"
)

// newDeafWatch returns the watch that detects deaf gateways, which are up but do not process messages.
func (h *Health) newDeafWatch() *probe.DeafWatch {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	return probe.NewDeafWatch(probe.DeafOptions{
		Snapshot: h.o.Loop.Snapshot, Ended: h.o.Loop.Ended(), Children: children, Post: h.o.Loop.Post,
		Lines: func(service string) uint64 {
			if l := h.o.Log(service); l != nil {
				return l.Stats().Lines
			}
			return 0
		},
		Envs: func(profiles []string) (map[string]map[string]string, error) {
			envs, err := h.o.Store.Envs(profiles)
			cfg := h.o.Config()
			for profile, env := range envs { // variables of the configuration override the .env
				maps.Copy(env, cfg.Agent.Env)
				maps.Copy(env, cfg.Profiles.Overrides[profile].Env)
			}
			return envs, err
		},
		State: h.o.Store.ReadState,
	})
}

// configureDeafWatch gives the watch for deaf gateways the settings in cfg.
func (h *Health) configureDeafWatch(cfg *config.Config) {
	if h.o.Plain { // a plain supervisor has no gateways
		return
	}
	h.deaf.Set(cfg.DeafOf("").Period, func(v *supervisor.Service) config.Deaf { return cfg.DeafOf(v.Profile) })
}

// deafness reports whether a gateway is deaf in its current run. The result deaf is also false if one of the gateway's checks
// reports the deafness.
func (h *Health) deafness(v *supervisor.Service) (d probe.Deafness, deaf bool) {
	d, deaf = h.deaf.Deafness(v.Name)
	return d, deaf && !d.ByCheck && v.State == supervisor.Up && v.Run == d.Run
}

// deafCheck returns the entry about a deaf gateway for the list of checks, or no entry if the service is not a deaf gateway.
func (h *Health) deafCheck(service string) []client.Check {
	if _, deaf := h.deaf.Deafness(service); !deaf {
		return nil
	}
	v := h.o.Loop.Snapshot().Find(service)
	if v == nil {
		return nil
	}
	d, deaf := h.deafness(v)
	if !deaf {
		return nil
	}
	return []client.Check{{
		Name: config.CheckDeaf, Kind: config.CheckAlive, Type: config.CheckDeaf, State: string(probe.Failing), Since: d.Since, Failures: d.Failures, Failed: true, Answer: d.Why,
	}}
}
