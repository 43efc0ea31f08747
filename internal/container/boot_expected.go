package container

import (
	"context"

	"hinit/client"
	"hinit/internal/config"
	"hinit/profiles"
	"hinit/supervisor"
)

// reasonExpected is why an expected service does not run.
const reasonExpected = "the boot has not come to it yet"

// expectServices takes the services of the configuration for expected.
func (c *container) expectServices(cfg *config.Config) {
	var list []*supervisor.Service
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		v := c.expectedService(name, supervisor.KindService, needBoot, s.WantedUp())
		if v.Command = s.Command; s.Log {
			v.Log = cfg.Logs.Dir + "/" + name + "/current"
		}
		list = append(list, v)
	}
	c.boot.Expect(list)
}

func (c *container) expectedService(name string, kind supervisor.Kind, need string, wanted bool) *supervisor.Service {
	want := supervisor.WantDown
	if wanted {
		want = supervisor.WantUp
	}
	return &supervisor.Service{
		Name: name, Kind: kind, State: supervisor.Waiting, Want: want, Reason: reasonExpected, Since: c.started, Needs: []string{need},
	}
}

// expectProfiles looks at the profiles while the hooks run. It blocks on the disk. What a hook changes meanwhile is seen by the boot.
func (c *container) expectProfiles(cfg *config.Config) {
	c.boot.Look(func() []*supervisor.Service {
		found, _, err := c.store.List() // the boot warns
		if err != nil {
			return nil
		}
		route := c.route.Load()
		gateways := make([]*supervisor.Service, 0, len(found))
		for _, p := range found {
			named := route.Supervise && p.Profile.Name == route.Profile
			v := c.expectedService(profiles.SlotName(p.Profile.Name), supervisor.KindGateway, needProfiles, named || p.State.Start())
			u := c.units.Gateway(cfg, p.Profile, nil)
			v.Profile, v.Log, v.Command = p.Profile.Name, u.Log, u.Spec.Argv
			gateways = append(gateways, v)
		}
		return gateways
	})
}

// Booting implements control.Core.
func (a api) Booting() (booting bool, hook *client.BootHook) {
	return !a.c.boot.IsOver(), a.c.boot.Hook()
}

// Expected implements control.Core.
func (a api) Expected(ctx context.Context, all bool) []*supervisor.Service {
	if a.c.boot.IsOver() || !a.c.tenure.Serves() {
		return nil
	}
	return a.c.boot.Expected(ctx, all)
}
