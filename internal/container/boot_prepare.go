package container

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/control/show"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

// stage2 prepares the container for its first service (contract, section 2.1): the data volume, the agent's hooks, the user's
// scripts. The error is a reason to stop the container.
func (c *container) stage2(ctx context.Context, cfg *config.Config, b *bootRun) error {
	if c.route.Load().Plain {
		b.Ready()
		return c.runHooks(ctx, cfg, boot.ConfiguredHooks(cfg), nil)
	}
	for _, l := range c.agent.Lines {
		c.line(l)
	}
	var modes []string
	look(func() {
		modes = boot.Modes(boot.ModesOptions{
			Pod: boot.InPod(os.LookupEnv),
			UID: os.Geteuid(), Agent: c.agent.Actor, AgentUID: c.agent.User.UID, Known: c.agent.Known, Name: cfg.Agent.User,
		})
	})
	for _, mode := range modes {
		c.Warn("%s", mode)
	}
	hooks := boot.ConfiguredHooks(cfg)
	memory := boot.NewMemory(c.bootOptions(cfg), version.Get().String(), hooks)
	report := boot.Prepare(ctx, c.bootOptions(cfg))
	c.boot.Add(report.Phases...)
	c.units.SetHome(report.Home)
	if len(report.Env) > 0 {
		c.units.SetEnv(proc.SetEnv(c.units.Env(), report.Env))
	}
	c.full.Store(report.Full)
	failed, failing := report.Failed()
	ends, ending := report.Failed("plant", "browser") // the boot steps do the work of the first, and an agent lives without the second
	switch {
	case failing && cfg.Boot.Strict:
		return fmt.Errorf("the boot step %q has failed, and boot.strict is set: %s", failed.Name, failed.Error)
	case ending && cfg.Image.Stage2Fails == "2":
		return fmt.Errorf("the boot step %q has failed, which ends the boot in this image: %s; S6_BEHAVIOUR_IF_STAGE2_FAILS=0 goes on", ends.Name, ends.Error)
	}
	if report.Unusable {
		memory = nil
	} else {
		memory.Recall(ctx, c.units.AgentEnv(cfg), report.Planted)
	}
	var scripts []boot.Hook
	var lines []boot.Line
	var err error
	look(func() {
		switch {
		case byImage(cfg):
			var h boot.Hook
			h, err = boot.ImageHook()
			hooks = append([]boot.Hook{h}, hooks...)
		case !report.Unusable: // it looks at the volume
			if h, wanted := boot.RebootstrapHook(c.bootOptions(cfg)); wanted {
				hooks = append(hooks, h)
			}
		}
		scripts, lines = boot.ContInitHooks(boot.ContInitDir, c.agent.Actor)
	})
	if err != nil {
		return err
	}
	for _, l := range lines {
		c.line(l)
	}
	c.phase("wait", func() error { // for what began meanwhile
		b.Ready()
		return nil
	})
	look(func() { boot.Publish(c.bootOptions(cfg), report.Env) })
	hooks = append(hooks, scripts...)
	for i := range hooks { // the image's Python steps may fail
		hooks[i].Required = hooks[i].Required || hooks[i].ContInit && cfg.Image.Stage2Fails == "2"
	}
	if len(hooks) > 0 && !report.Unusable && !c.route.Load().DashboardOnly {
		c.expectProfiles(cfg)
	}
	if err := c.runHooks(ctx, cfg, hooks, memory); err != nil {
		return err
	}
	if cfg.Image.Stage2Fails == "1" && c.boot.Failed() {
		c.Warn("a boot step has failed, and the boot goes on because S6_BEHAVIOUR_IF_STAGE2_FAILS is 1")
	}
	if memory != nil {
		if err := memory.Settle(ctx); err != nil {
			c.Say("%v", err)
		}
	}
	c.line(boot.Line{Text: boot.SetupComplete})
	return nil
}

func (c *container) runHooks(ctx context.Context, cfg *config.Config, hooks []boot.Hook, memory *boot.Memory) error {
	for i := range hooks {
		hooks[i].Number = i + 1
	}
	c.boot.HooksBegin(len(hooks))
	phases, err := boot.RunHooks(ctx, hooks, &hookRunner{c: c, cfg: cfg}, memory, cfg.Boot.Strict, c.line)
	c.boot.HooksEnd()
	c.boot.Add(phases...)
	return err
}

func byImage(cfg *config.Config) bool { return cfg.Boot.Steps == config.StepsImage }

func (c *container) bootOptions(cfg *config.Config) boot.Options {
	return boot.Options{
		Home: cfg.Home, Logs: cfg.Logs.Dir, User: cfg.Agent.User, Agent: c.agent.Actor, Env: os.LookupEnv, Full: c.full.Load(),
		ByImage: byImage(cfg), Stamp: cfg.Image.Stamp, Say: func(l boot.Line) { pass(c.agents(), l) },
	}
}

// line passes on a line of the boot, and remembers it when it is a warning.
func (c *container) line(l boot.Line) { pass(c.Logger, l) }

func pass(v *initlog.Logger, l boot.Line) {
	v.Line(l.Text)
	if l.Warning {
		v.Remember(l.Text)
	}
}

// fatal ends the container because of the boot.
func (c *container) fatal(reason string) {
	c.Say("%s", reason)
	c.Say("fatal: stopping the container")
	c.loop.Post(supervisor.Shutdown{Code: 1, Reason: "the boot has failed"})
}

// sayTimeline reports the duration of the boot and of its steps. The time that no step has measured, such as the wait for the
// control socket, is a step too.
func (c *container) sayTimeline() {
	if rest := time.Since(c.started).Seconds() - show.BootSeconds(c.boot.Steps()); rest > 0 {
		c.boot.Add(client.BootStep{Name: "other", Seconds: rest})
	}
	c.Say("boot: %s", show.Timeline(c.boot.Steps()))
}

// hookRunner runs the hooks of the boot as tasks of the supervisor, for nothing else may start a process.
type hookRunner struct {
	c   *container
	cfg *config.Config
	n   atomic.Int32
}

// RunHook implements boot.Runner.
func (r *hookRunner) RunHook(ctx context.Context, h boot.Hook) (int, error) {
	r.c.boot.HookBegins(h.Name, h.Number)
	u, err := r.c.units.Hook(r.cfg, h, int(r.n.Add(1)))
	if err != nil {
		return 0, err
	}
	if doubt := r.c.units.Doubt("the hook "+h.Name, u); doubt != "" {
		r.c.Warn("%s", doubt)
	}
	name := u.Name
	if err := r.c.registry.Register(ctx, u, supervisor.WantUp); err != nil {
		return 0, err
	}
	defer r.c.loop.Post(supervisor.Remove{Name: name})
	code, err := supervisor.AwaitTask(ctx, r.c.loop, name)
	if ctx.Err() != nil {
		r.c.loop.Post(supervisor.Stop{Name: name})
		_, _ = supervisor.AwaitTask(context.Background(), r.c.loop, name) // nothing of it is alive then
		return 0, context.Cause(ctx)
	}
	r.c.logs.Drain(name) // what it wrote comes before what follows it
	return code, err
}

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
	if c.boot.IsOver() || !c.holder.Serves() {
		return nil
	}
	return c.boot.Expected(ctx, all)
}
