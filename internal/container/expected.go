package container

import (
	"context"
	"slices"
	"sync"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/lease"
	"hinit/profiles"
	"hinit/supervisor"
)

// expected is what the status shows while the boot runs its hooks: the services that the boot will register, and the hook that runs.
// Nothing but the status looks at it. The zero value knows nothing.
type expected struct {
	mu       sync.Mutex
	services []*supervisor.Service
	looked   chan struct{} // closed when the profiles are among them; nil while nobody looks for them
	hooks    int           // how many the boot has
	running  *client.BootHook
	since    time.Time // of the hook that runs
}

// reasonExpected is why an expected service does not run.
const reasonExpected = "the boot has not come to it yet"

// expectServices takes the services of the configuration for expected.
func (c *container) expectServices(cfg *config.Config) {
	var list []*supervisor.Service
	for _, name := range sortedKeys(cfg.Services) {
		s := cfg.Services[name]
		v := c.expectedService(name, supervisor.KindService, needBoot, s.Enabled)
		if v.Command = s.Command; s.Log {
			v.Log = cfg.Logs.Dir + "/" + name + "/current"
		}
		list = append(list, v)
	}
	c.expected.mu.Lock()
	defer c.expected.mu.Unlock()
	c.expected.services = list
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
	e := &c.expected
	looked := make(chan struct{})
	e.mu.Lock()
	e.looked = looked
	e.mu.Unlock()
	guard.Go("looking at the profiles during the boot", func() {
		defer close(looked)
		found, _, err := c.store.List() // the boot warns
		if err != nil {
			return
		}
		route := c.route.Load()
		gateways := make([]*supervisor.Service, 0, len(found))
		for _, p := range found {
			named := route.Supervise && p.Profile.Name == route.Profile
			v := c.expectedService(profiles.SlotName(p.Profile.Name), supervisor.KindGateway, needProfiles, named || p.State.Start())
			u := c.gatewayUnit(cfg, p.Profile, nil)
			v.Profile, v.Log, v.Command = p.Profile.Name, u.Log, u.Spec.Argv
			gateways = append(gateways, v)
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.services = append(gateways, e.services...)
	})
}

// hooksBegin takes note of how many hooks will run.
func (e *expected) hooksBegin(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hooks = n
}

// hookBegins takes note of the hook that runs now.
func (e *expected) hookBegins(h boot.Hook) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running, e.since = &client.BootHook{Name: h.Name, Number: h.Number, Of: e.hooks}, time.Now()
}

// hook is the hook that runs, nil when none does.
func (e *expected) hook() *client.BootHook {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil {
		return nil
	}
	h := *e.running
	h.Seconds = time.Since(e.since).Seconds()
	return &h
}

// hooksEnd takes note that the hooks have run.
func (e *expected) hooksEnd() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = nil
}

// Booting implements control.Booter.
func (a core) Booting() (booting bool, hook *client.BootHook) {
	return !a.c.hasBooted(), a.c.expected.hook()
}

// Expected implements control.Booter.
func (a core) Expected(ctx context.Context, all bool) []*supervisor.Service {
	c, e := a.c, &a.c.expected
	if c.hasBooted() || c.lease.Status().State == lease.Elsewhere {
		return nil
	}
	e.mu.Lock()
	looked := e.looked // nil: the boot has not got so far, or it has no hooks to wait for and is over soon
	e.mu.Unlock()
	if all {
		select {
		case <-looked:
		case <-c.booted:
		case <-ctx.Done():
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.services)
}
