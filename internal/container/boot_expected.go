package container

import (
	"context"
	"maps"
	"slices"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

// reasonExpected is why an expected service does not run.
const reasonExpected = "the boot has not come to it yet"

// expectServices takes the services of the configuration for expected.
func (c *container) expectServices(cfg *config.Config) {
	var list []*supervisor.Service
	for _, name := range slices.Sorted(maps.Keys(cfg.Services)) {
		s := cfg.Services[name]
		v := c.expectedService(name, supervisor.KindService, registry.NeedBoot, s.WantedUp())
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

// expectProfiles looks at the profiles while the hooks run. It blocks on the disk. The boot sees what a hook changes meanwhile.
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
			v := c.expectedService(profiles.SlotName(p.Profile.Name), supervisor.KindGateway, registry.NeedProfiles, named || p.State.Start())
			u := c.units.Gateway(cfg, p.Profile, nil)
			v.Profile, v.Log, v.Command = p.Profile.Name, u.Log, u.Spec.Argv
			gateways = append(gateways, v)
		}
		return gateways
	})
}

func (c *container) booting() (booting bool, hook *client.BootHook) {
	return !c.boot.IsOver(), c.boot.Hook()
}

func (c *container) expected(ctx context.Context, all bool) []*supervisor.Service {
	if c.boot.IsOver() || !c.tenure.Serves() {
		return nil
	}
	return c.boot.Expected(ctx, all)
}
