package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/version"
	"hinit/profiles"
	"hinit/supervisor"
)

// hookPrefix is what the names of the hooks begin with, as services of the supervisor.
const hookPrefix = "hook-"

const (
	// profilesBudget is how long the boot waits for the profiles. A volume that answers later still gets its gateways.
	profilesBudget = 15 * time.Second
	// hookGrace is what a hook has between TERM and KILL when it takes too long.
	hookGrace = 2 * time.Second
)

// stage2 makes the container ready for its first service, in the order of contract section 2.1: who the agent is has been
// settled before; here are the data volume, the hooks of the agent, and the scripts of the user. ready returns when processes
// may be started. The error is a reason to stop the container.
func (c *container) stage2(ctx context.Context, cfg *config.Config, ready func()) error {
	if c.route.Load().Plain {
		ready()
		return c.runHooks(ctx, cfg, boot.ConfiguredHooks(cfg), nil)
	}
	for _, l := range c.agent.Lines {
		c.line(l)
	}
	var modes []string
	look(func() {
		modes = boot.Modes(boot.ModesOptions{
			UID: os.Geteuid(), Agent: c.agent.Actor, AgentUID: c.agent.User.UID, Known: c.agent.Known, Name: cfg.Agent.User,
		})
	})
	for _, mode := range modes {
		c.warn("%s", mode)
	}
	hooks := boot.ConfiguredHooks(cfg)
	memory := boot.NewMemory(c.bootOptions(cfg), version.Get().String(), hooks)
	report := boot.Prepare(ctx, c.bootOptions(cfg))
	c.steps(report.Phases)
	c.home.Store(&report.Home)
	if len(report.Env) > 0 {
		env := proc.SetEnv(*c.env.Load(), report.Env)
		c.env.Store(&env)
	}
	c.full.Store(report.Full)
	if failed, ok := report.Failed(); ok && cfg.Boot.Strict {
		return fmt.Errorf("the boot step %q has failed, and boot.strict is set: %s", failed.Name, failed.Error)
	}
	if report.Unusable {
		memory = nil
	} else {
		memory.Recall(ctx, proc.SetEnv(*c.env.Load(), c.agentHome(cfg)), report.Planted)
	}
	var scripts []boot.Hook
	var lines []boot.Line
	look(func() {
		if !report.Unusable { // it looks at the volume
			if h, wanted := boot.RebootstrapHook(c.bootOptions(cfg)); wanted {
				hooks = append(hooks, h)
			}
		}
		scripts, lines = boot.ContInitHooks(boot.ContInitDir, c.agent.Actor)
	})
	for _, l := range lines {
		c.line(l)
	}
	ready()
	look(func() { boot.Publish(c.bootOptions(cfg), report.Env) })
	hooks = append(hooks, scripts...)
	if len(hooks) > 0 && !report.Unusable && !c.route.Load().DashboardOnly {
		c.expectProfiles(cfg)
	}
	if err := c.runHooks(ctx, cfg, hooks, memory); err != nil {
		return err
	}
	if memory != nil {
		if err := memory.Settle(ctx); err != nil {
			c.say("[hinit] %v", err)
		}
	}
	c.line(boot.Line{Text: boot.SetupComplete})
	return nil
}

func (c *container) runHooks(ctx context.Context, cfg *config.Config, hooks []boot.Hook, memory *boot.Memory) error {
	for i := range hooks {
		hooks[i].Number = i + 1
	}
	c.expected.hooksBegin(len(hooks))
	phases, err := boot.RunHooks(ctx, hooks, &hookRunner{c: c, cfg: cfg}, memory, cfg.Boot.Strict, c.line)
	c.expected.hooksEnd()
	c.steps(phases)
	return err
}

func (c *container) bootOptions(cfg *config.Config) boot.Options {
	return boot.Options{
		Home: cfg.Home, Logs: cfg.Logs.Dir, User: cfg.Agent.User, Agent: c.agent.Actor, Env: os.LookupEnv, Say: c.line, Full: c.full.Load(),
	}
}

// line passes on a line of the boot, and remembers it when it is a warning.
func (c *container) line(l boot.Line) {
	fmt.Fprintln(c.logs.set.Console(2), show.Line(l.Text))
	if l.Warning {
		c.remember(l.Text)
	}
}

func (c *container) steps(phases []boot.Phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range phases {
		c.phases = append(c.phases, client.BootStep{Name: p.Name, Seconds: p.Seconds, Error: p.Error, Skipped: p.Skipped, Beside: p.Beside})
	}
}

// fatal ends the container because of the boot.
func (c *container) fatal(reason string) {
	c.say("[hinit] %s", reason)
	c.say("[hinit] fatal: stopping the container")
	c.loop.Post(supervisor.Shutdown{Code: 1, Reason: "the boot has failed"})
}

// sayTimeline tells how long the boot took, and with what.
func (c *container) sayTimeline() {
	c.mu.Lock()
	phases := c.phases
	c.mu.Unlock()
	c.say("[hinit] boot: %s", show.Timeline(phases))
}

// profiles registers the gateways and begins to watch. When the volume does not answer in time, or there are so many that they take
// longer, the boot goes on without the rest, which comes up when it can.
func (c *container) profiles(ctx context.Context, cfg *config.Config) error {
	done := make(chan error, 1)
	read := make(chan struct{})
	c.reading = read
	guard.Go("bringing up the profiles", func() {
		defer close(read)
		if err := c.lease.Check(); err != nil {
			c.images.settle()
			done <- err
			return
		}
		if c.route.Load().Supervise {
			c.whichProfile()
		}
		known, err := c.reconcile(ctx, cfg)
		_ = c.meet(ctx, needProfiles)      // it fails when the container has ended
		if !c.route.Load().DashboardOnly { // such a container shares its volume with one that has the gateways
			c.keeper.start(ctx, known)
		}
		guard.Go("waiting for the boot log", func() { // another image would not write it
			<-c.logged
			c.images.settle()
		})
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(profilesBudget):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if b := c.bootProfiles(); b != nil && b.Done > 0 {
		c.say("[hinit] boot: profiles %s of %s after %s; the boot goes on while the others come up", show.Thousands(b.Done), show.Thousands(b.Profiles), profilesBudget)
		return nil
	}
	return fmt.Errorf("cannot read the profiles: %q did not answer within %s; their gateways start when it does", cfg.Home, profilesBudget)
}

// repairOwners gives the agent what is left of its files, in the background: all of them at boot, unless that was done, and
// those of a profile when it appears or is started. Requests that come while it works are one.
func (c *container) repairOwners(ctx context.Context, cfg *config.Config, all bool) {
	if !c.agent.Actor.Switches() {
		return // nobody's files can be given away
	}
	if all {
		c.repairOnce(ctx, cfg, nil)
	}
	for {
		select {
		case <-c.repairs:
			c.mu.Lock()
			only := sortedKeys(c.repairOf)
			clear(c.repairOf)
			c.mu.Unlock()
			if len(only) > 0 { // else the last repair took this request with it
				c.repairOnce(ctx, cfg, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repairOnce repairs the homes of the named profiles, or everything when only is nil; the status shows how that goes.
func (c *container) repairOnce(ctx context.Context, cfg *config.Config, only []string) {
	show := func(r client.Repair) {
		if only != nil {
			return
		}
		c.mu.Lock()
		c.repair = &r
		c.mu.Unlock()
	}
	o := c.bootOptions(cfg)
	o.Only = only
	o.Say = func(l boot.Line) { // the result is said once, as an event
		if l.Warning {
			c.remember(l.Text)
		}
	}
	result := boot.Repair(ctx, o, func(p boot.Progress) {
		show(client.Repair{Directory: p.Directory, Seen: p.Seen, Changed: p.Changed, Failed: p.Failed})
	})
	show(client.Repair{
		Seen: result.Seen, Changed: result.Changed, Failed: result.Failed, Done: true, Seconds: result.Seconds, Stopped: result.Stopped,
	})
	if result.Changed+result.Failed+result.Refused > 0 || result.Stopped != "" {
		c.loop.Post(supervisor.Remark{Text: result.String()})
	}
}

// adopt makes a profile usable for the agent that somebody else has made: what a gateway needs to start now, the rest soon.
func (c *container) adopt(ctx context.Context, profile string) {
	if profile == profiles.Default || !c.agent.Actor.Switches() {
		return
	}
	if err := boot.Adopt(ctx, c.bootOptions(c.cfg.Load()), profile); err != nil {
		c.say("[hinit] cannot give the files of profile %s to the agent's user: %v", profile, err)
	}
	c.mu.Lock()
	c.repairOf[profile] = true
	c.mu.Unlock()
	select {
	case c.repairs <- struct{}{}:
	default: // one is due already
	}
}

// hookRunner runs the hooks of the boot as tasks of the supervisor, for nothing else may start a process.
type hookRunner struct {
	c   *container
	cfg *config.Config
	n   atomic.Int32
}

// RunHook implements boot.Runner.
func (r *hookRunner) RunHook(ctx context.Context, h boot.Hook) (int, error) {
	r.c.expected.hookBegins(h)
	name := fmt.Sprintf("%s%d", hookPrefix, r.n.Add(1))
	cred, err := r.c.agent.CredFor(r.cfg, h.User)
	if err != nil {
		return 0, err
	}
	env, dir := *r.c.env.Load(), ""
	if !r.c.route.Load().Plain {
		env = proc.SetEnv(env, r.c.agentHome(r.cfg))
	}
	if r.c.isRoots(cred) {
		env, dir = r.c.rootEnv(nil), "/"
	}
	u := supervisor.Unit{
		Name: name, Kind: supervisor.KindHook,
		// A script of the user may start something that is to go on.
		Policy: supervisor.Policy{Task: true, Spare: h.ContInit, StopSignal: int(unix.SIGTERM), Grace: hookGrace},
		Spec:   proc.Spec{Argv: h.Command, Env: env, Dir: dir, Cred: cred},
	}
	if err := r.c.register(ctx, u, supervisor.WantUp); err != nil {
		return 0, err
	}
	defer r.c.loop.Post(supervisor.Remove{Name: name})
	s, err := r.wait(ctx, name)
	if err != nil {
		return 0, err
	}
	r.c.logs.drain(name) // what it wrote comes before what follows it
	switch x := s.LastExit; {
	case x == nil:
		return 0, errors.New("it was not run: the container is stopping")
	case x.Cause == supervisor.CauseSpawn:
		return 0, errors.New(x.Error)
	case x.Signal != 0:
		return 128 + x.Signal, nil
	default:
		return x.Code, nil
	}
}

// wait blocks until the task is down. When ctx ends before, the task is stopped first.
func (r *hookRunner) wait(ctx context.Context, name string) (*supervisor.Service, error) {
	over := ctx.Done()
	for {
		news := r.c.loop.News()
		s := r.c.loop.Snapshot().Find(name)
		if s == nil || s.State == supervisor.Down {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if s == nil {
				return nil, errors.New("it was removed while it ran")
			}
			return s, nil
		}
		select {
		case <-news:
		case <-over:
			over = nil // once
			r.c.loop.Post(supervisor.Stop{Name: name})
		case <-r.c.loop.Ended():
			return nil, supervisor.ErrStopping
		}
	}
}

// cloneRepair is for readers of the status.
func (c *container) cloneRepair() *client.Repair {
	if c.repair == nil {
		return nil
	}
	r := *c.repair
	return &r
}
