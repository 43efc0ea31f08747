package container

import (
	"maps"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/probe"
	"hinit/supervisor"
)

// newEars makes what finds the deaf gateways of a container whose loop is made.
func (c *container) newEars() *probe.Ears {
	return probe.NewEars(probe.EarOptions{
		Snapshot: c.loop.Snapshot, Ended: c.loop.Ended(), Post: c.loop.Post,
		Lines: func(service string) uint64 {
			if l := c.logs.Get(service); l != nil {
				return l.Stats().Lines
			}
			return 0
		},
		Envs: func(profiles []string) (map[string]map[string]string, error) {
			envs, err := c.store.Envs(profiles)
			cfg := c.cfg.Load()
			for profile, env := range envs { // what the configuration sets is what the gateway finds
				maps.Copy(env, cfg.Agent.Env)
				maps.Copy(env, cfg.Profiles.Own[profile].Env)
			}
			return envs, err
		},
		State: c.store.ReadState,
	})
}

// listen puts what a configuration says about deaf gateways in force.
func (c *container) listen(cfg *config.Config) {
	if c.route.Load().Plain { // it has none
		return
	}
	actions := make(map[string]string, len(cfg.Profiles.Own))
	for profile := range cfg.Profiles.Own {
		actions[profile] = cfg.DeafOf(profile)
	}
	others := cfg.DeafOf("")
	c.ears.Set(cfg.Agent.Deaf, func(v *supervisor.Service) string {
		if action, own := actions[v.Profile]; own {
			return action
		}
		return others
	})
}

// deafness says what is known of a gateway that is deaf in its present run.
func (c *container) deafness(v *supervisor.Service) (d probe.Deafness, deaf bool) {
	d, deaf = c.ears.Deafness(v.Name)
	return d, deaf && v.State == supervisor.Up && v.Run == d.Run
}

// deafCheck is what the status says of a deaf gateway among its checks. Of one that hears it says nothing.
func (c *container) deafCheck(service string) []client.Check {
	if _, deaf := c.ears.Deafness(service); !deaf {
		return nil
	}
	v := c.loop.Snapshot().Find(service)
	if v == nil {
		return nil
	}
	d, deaf := c.deafness(v)
	if !deaf {
		return nil
	}
	return []client.Check{{
		Name: config.CheckDeaf, Kind: config.CheckAlive, Type: config.CheckDeaf, State: string(probe.Failing), Since: d.Since, Failures: d.Failures, Failed: true, Answer: d.Why,
	}}
}
