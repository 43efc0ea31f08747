package health

import (
	"maps"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/probe"
	"hinit/supervisor"
)

// newDeafWatch makes what finds the deaf gateways.
func (h *Health) newDeafWatch() *probe.DeafWatch {
	return probe.NewDeafWatch(probe.DeafOptions{
		Snapshot: h.o.Loop.Snapshot, Ended: h.o.Loop.Ended(), Post: h.o.Loop.Post,
		Lines: func(service string) uint64 {
			if l := h.o.Log(service); l != nil {
				return l.Stats().Lines
			}
			return 0
		},
		Envs: func(profiles []string) (map[string]map[string]string, error) {
			envs, err := h.o.Store.Envs(profiles)
			cfg := h.o.Config()
			for profile, env := range envs { // what the configuration sets is what the gateway finds
				maps.Copy(env, cfg.Agent.Env)
				maps.Copy(env, cfg.Profiles.Own[profile].Env)
			}
			return envs, err
		},
		State: h.o.Store.ReadState,
	})
}

// watchDeaf puts what a configuration says about deaf gateways in force.
func (h *Health) watchDeaf(cfg *config.Config) {
	if h.o.Plain { // it has none
		return
	}
	own, others := make(map[string]config.Deaf, len(cfg.Profiles.Own)), cfg.DeafOf("")
	for profile := range cfg.Profiles.Own {
		own[profile] = cfg.DeafOf(profile)
	}
	h.deaf.Set(others.Period, func(v *supervisor.Service) config.Deaf {
		if policy, has := own[v.Profile]; has {
			return policy
		}
		return others
	})
}

// deafness says what is known of a gateway that is deaf in its present run, unless a check of the gateway says it.
func (h *Health) deafness(v *supervisor.Service) (d probe.Deafness, deaf bool) {
	d, deaf = h.deaf.Deafness(v.Name)
	return d, deaf && !d.ByCheck && v.State == supervisor.Up && v.Run == d.Run
}

// deafCheck is what the status says of a deaf gateway among its checks. Of one that hears it says nothing.
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
