package container

import (
	"maps"
	"slices"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/config"
	"hinit/internal/fsutil"
	"hinit/internal/probe"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// newProber makes the prober of a container whose loop is made.
func (c *container) newProber() *probe.Prober {
	return probe.New(probe.Options{
		Snapshot: c.loop.Snapshot, News: c.loop.News, Ended: c.loop.Ended(), Post: c.loop.Post,
		Env: func(profile string) (map[string]string, error) {
			if profile == "" {
				profile = profiles.Default
			}
			return c.store.Env(profile)
		},
		State: c.store.ReadState,
		Watch: func(service string, seen func([]byte)) {
			if l := c.logs.Get(service); l != nil {
				l.Watch(seen)
			}
		},
		Hear: c.notify.Drain,
		Run:  c.runCheck,
	})
}

// checksOf returns the checks that the configuration has for a service.
func checksOf(cfg *config.Config, u *supervisor.Unit) []config.Check {
	switch u.Kind {
	case supervisor.KindGateway:
		return cfg.ChecksOf(u.Profile)
	case supervisor.KindService:
		s := cfg.Services[u.Name]
		return s.AllChecks()
	case supervisor.KindCmd, supervisor.KindHook, supervisor.KindStandIn, supervisor.KindRun, supervisor.KindCheck:
	}
	return nil
}

// gate notes in a unit whether its checks have a say in whether it is ready.
func gate(cfg *config.Config, u *supervisor.Unit) {
	u.Checked = probe.Gates(probe.RulesOf(checksOf(cfg, u)))
}

// check has the checks of a service asked from its next start on, and those of a running one from now on.
func (c *container) check(u *supervisor.Unit) {
	cfg := c.cfg.Load()
	checks := checksOf(cfg, u)
	t := probe.Target{Checks: checks, Profile: u.Profile, Spec: u.Spec}
	if len(checks) > 0 {
		t.Actor = c.actorOf(u.Spec.Cred)
		vars := map[string]string{}
		t.Env = cfg.Services[u.Name].Env
		if u.Kind == supervisor.KindGateway {
			t.Env = maps.Clone(cfg.Agent.Env)
			maps.Copy(t.Env, cfg.Profiles.Own[u.Profile].Env)
			if p, err := c.store.Profile(u.Profile); err == nil {
				vars["profile"], vars["profile_home"] = p.Name, p.Home
			}
		}
		t.Expand = func(text string) string { return cfg.ExpandString(text, vars) }
	}
	c.checks.Set(u.Name, t)
}

// actorOf acts as the user that a service runs as.
func (c *container) actorOf(cred *proc.Cred) *fsutil.Actor {
	switch {
	case cred == nil:
		return fsutil.Self().In(blocking.Volume)
	case c.agent.Cred != nil && cred.UID == c.agent.Cred.UID && cred.GID == c.agent.Cred.GID:
		return c.agent.Actor.In(blocking.Volume)
	}
	return fsutil.NewActor(fsutil.Identity{UID: cred.UID, GID: cred.GID, Groups: slices.Clone(cred.Groups)}).In(blocking.Volume)
}

// Checks implements control.Checker.
func (a api) Checks(service string) []client.Check {
	deaf := a.c.deafCheck(service)
	h, types, ok := a.c.checks.Health(service)
	if !ok {
		return deaf
	}
	out := make([]client.Check, len(h.Checks))
	for i := range h.Checks {
		p := &h.Checks[i]
		c := client.Check{Name: p.Rule.Name, Kind: p.Rule.Kind, Type: types[i], State: string(p.Verdict), Since: p.Since, Answer: p.Answer, Failures: p.Failures(), Failed: p.Verdict == probe.Failing}
		if h.Held(i) && p.Verdict == probe.Pending {
			c.State = client.CheckHeld
		}
		if !p.Asked.IsZero() {
			c.At = &p.Asked
		}
		out[i] = c
	}
	return append(out, deaf...)
}
