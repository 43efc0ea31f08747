package container

import (
	"context"
	"errors"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/units"
	"hinit/internal/container/voice"
	"hinit/internal/gateways/orders"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/s6/personality"
	"hinit/internal/s6/scandir"
	"hinit/internal/tuning"
	"hinit/profiles"
	"hinit/supervisor"
)

// markerTime is how long the end of a gateway waits for its planned-stop marker, without which it takes its end for a fault.
const markerTime = 2 * time.Second

// slots is how this container answers as s6.
func (c *container) slots() personality.Personality { return *c.s6.Load() }

func (c *container) answerAs(p personality.Personality) { c.s6.Store(&p) }

// openS6 makes the directories of s6 and answers from now on as it does. Where it can't, hinit goes on without.
func (c *container) openS6(ctx context.Context) error {
	s6, err := personality.Open(ctx, slotHost{c.Voice, c}, c.s6Settings())
	if err == nil {
		c.answerAs(s6)
	}
	return err
}

func (c *container) s6Settings() personality.Settings {
	return personality.Settings{
		Agent: c.agent.Actor, Cred: c.agent.Cred, Env: c.units.Env(), Since: c.started,
		Main: c.cfg.Load().Services[personality.MainHermes].Name == "", // else somebody has a use for the name
	}
}

// resumeS6 takes the scan directory over, if the last generation answered as s6. It must be called before the loop runs.
func (c *container) resumeS6(old *scandir.Handover) {
	if old == nil {
		return
	}
	s6, err := personality.TakeOver(slotHost{c.Voice, c}, c.s6Settings(), old)
	if err != nil {
		c.Warn("%v", err)
		return
	}
	c.answerAs(s6)
}

// gatewaySlot is what the slot of a profile's gateway says.
func (c *container) gatewaySlot(cfg *config.Config, p profiles.Profile, down bool) personality.Definition {
	u := c.units.Gateway(cfg, p, nil)
	c.keeper.NoteDown(p.Name, down)
	return personality.Definition{
		Name: u.Name, Down: down, Argv: u.Spec.Argv, Env: c.units.GatewayVars(cfg, p, u.Spec.Dir), Dir: u.Spec.Dir,
		Cred: u.Spec.Cred, Finish: true, ParkOn: cfg.Restart.ParkOn,
		Log: cfg.Logs.Dir + "/" + p.Name, LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
}

// serviceSlot is what the slot of a service of hinit.yaml says.
func (c *container) serviceSlot(cfg *config.Config, s config.Service) personality.Definition {
	d := personality.Definition{
		Name: s.Name, Down: !s.WantedUp(), Argv: s.Command, Env: c.units.ServiceVars(cfg, s), Dir: s.Cwd, Cred: c.agent.Cred,
		LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
	if u, err := c.units.Service(cfg, s); err == nil {
		if d.Dir = u.Spec.Dir; u.Spec.Cred == nil {
			d.Cred = nil
		}
	}
	if s.Log {
		d.Log = cfg.Logs.Dir + "/" + s.Name
	}
	return d
}

// publishService makes the slot of a service of hinit.yaml.
func (c *container) publishService(ctx context.Context, cfg *config.Config, s config.Service) {
	c.slots().Publish(ctx, c.serviceSlot(cfg, s))
	c.slots().SetDown(s.Name, !s.WantedUp())
}

// republish brings the slot of a service back that somebody has removed.
func (c *container) republish(ctx context.Context, name string) {
	if !c.slots().Acts() || c.slots().Has(name) {
		return
	}
	cfg := c.cfg.Load()
	if s, own := cfg.Services[name]; own {
		c.publishService(ctx, cfg, s)
		return
	}
	profile, ok := profiles.SlotProfile(name)
	if !ok {
		return
	}
	p, err := c.store.Profile(profile)
	if err != nil {
		return
	}
	c.slots().Publish(ctx, c.gatewaySlot(cfg, p, true))
	// Drop the exports of the removed slot.
	if err := c.registerGateway(ctx, cfg, p); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.Say("%v", err)
	}
}

const (
	// slotTime is how long the boot log, which says that the slots are there, waits for them on a slow file system.
	slotTime = 20 * time.Second
	// cmdSlotTime is how long the CMD waits for all slots.
	cmdSlotTime = time.Second
)

// logSoon writes the boot log when the slots in the queue are there: who waits for that log looks for the slots next.
func (c *container) logSoon(ctx context.Context, write func() error) {
	logged := make(chan struct{})
	c.logged = logged
	made := c.slots().Made()
	guard.Go("writing the boot log", func() {
		defer close(logged)
		if !within(ctx, slotTime, made) && ctx.Err() == nil {
			c.Warn("not all slots of gateways are made after %s, because the file system of the scan directory is slow; the others follow", slotTime)
		}
		if err := write(); err != nil {
			c.Warn("cannot write the boot log: %v", err)
		}
	})
}

// slotsForCmd lets a CMD that looks for slots find them, unless there are very many.
func (c *container) slotsForCmd(ctx context.Context) {
	if !c.slots().Acts() || c.reading == nil || c.route.Load().Supervise || c.route.Load().Foreground {
		return
	}
	select {
	case <-c.reading:
	default:
		return // the volume hangs
	}
	ctx, done := context.WithTimeout(ctx, cmdSlotTime)
	defer done()
	_ = within(ctx, cmdSlotTime, c.slots().Made()) && within(ctx, cmdSlotTime, c.logged) // it starts in any case
}

// within waits for a channel to be closed, and says whether it was.
func within(ctx context.Context, limit time.Duration, closed <-chan struct{}) bool {
	select {
	case <-closed:
		return true
	case <-time.After(limit):
	case <-ctx.Done():
	}
	return false
}

// startStandIn starts the process that stands for a CMD "gateway run". An image without a sleep gets a copy of hinit.
func (c *container) startStandIn(ctx context.Context) {
	if !c.slots().Acts() || c.route.Load().DashboardOnly {
		return
	}
	path, found := "", false
	look(func() { path, found = boot.Lookup(proc.Getenv(c.units.Env(), "PATH"), "/")(units.StandInName) })
	if !found {
		path = c.generation.Exe
	}
	u := units.StandInUnit(path, c.units.Env(), c.agent.Cred)
	if err := c.register(ctx, u, supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.Warn("cannot start the process that stands for the CMD: %v", err)
	}
}

// slotHost is the container as the personality of s6 needs it. It implements [personality.Host].
type slotHost struct {
	*voice.Voice
	c *container
}

// Gateway implements scandir.Host.
func (h slotHost) Gateway(ctx context.Context, profile string, start bool, exports map[string]string) error {
	c := h.c
	if !c.route.Load().HasProfiles() {
		return errors.New("this container has no gateways")
	}
	if err := c.tenure.Check(); err != nil {
		return err
	}
	p, err := c.store.Profile(profile)
	if err != nil {
		return err
	}
	name, want := profiles.SlotName(profile), supervisor.WantDown
	refused := c.keeper.Refuse(name)
	if start && refused == nil {
		want = supervisor.WantUp
	}
	u := c.units.Gateway(c.cfg.Load(), p, exports)
	c.keeper.NoteDown(profile, !start)
	known := c.loop.Snapshot().Find(u.Name) != nil
	if err := c.register(ctx, u, want); err != nil {
		return err
	}
	if start && refused != nil {
		c.Say("%s: it is not started: %v", name, refused)
		return nil
	}
	if start {
		c.keeper.WarnIfMissing(u.Name, profile)
	}
	if known && start { // a known one keeps what is wanted of it
		return c.loop.Do(ctx, supervisor.Start{Name: u.Name})
	}
	return nil
}

// Unregistered implements scandir.Host. The intent for a profile stays on the volume: a slot is gone until the next start, a
// profile is not.
func (h slotHost) Unregistered(ctx context.Context, service string) {
	c := h.c
	profile, gateway := profiles.SlotProfile(service)
	if gateway {
		marked := make(chan struct{})
		go func() { // the volume may hang
			defer close(marked)
			defer guard.Catch("announcing a stop")
			c.keeper.AnnounceStop(service, profile)
		}()
		_ = within(context.Background(), markerTime, marked)
	}
	var e supervisor.Event = supervisor.Stop{Name: service}
	if gateway && !c.keeper.Exists(profile) {
		e = supervisor.Remove{Name: service}
	}
	switch err := c.loop.Do(ctx, e); {
	case err == nil:
		c.Say("%s: its slot was removed, so it is stopped", service)
	case !errors.Is(err, supervisor.ErrUnknown) && !errors.Is(err, supervisor.ErrStopping):
		c.Say("%s: its slot was removed, but it cannot be stopped: %v", service, err)
	}
}

// Reserved implements scandir.Host.
func (h slotHost) Reserved(name string) string {
	switch {
	case name == units.CmdName, name == personality.MainHermes, strings.HasPrefix(name, units.HookPrefix):
		return "the name is taken by hinit itself"
	case h.c.loop.Snapshot().Find(name) != nil:
		return "hinit has a service of that name; `hinit start " + name + "` brings its slot back"
	}
	return ""
}

// Identity implements scandir.Host.
func (h slotHost) Identity(root bool) proc.Spec {
	return h.c.units.Foreign(h.c.cfg.Load(), root)
}

// The other methods of personality.Host. A foreign service costs more descriptors than others, while it runs and while it does not.
func (h slotHost) Room() error                    { return tuning.SpareDescriptors() }
func (h slotHost) Snapshot() *supervisor.Snapshot { return h.c.loop.Snapshot() }
func (h slotHost) Shutdown(reason string)         { h.c.loop.Post(supervisor.Shutdown{Reason: reason}) }

func (h slotHost) Do(ctx context.Context, e supervisor.Event) error { return h.c.loop.Do(ctx, e) }

func (h slotHost) Register(ctx context.Context, u supervisor.Unit, want supervisor.Want) error {
	return h.c.register(ctx, u, want)
}

func (h slotHost) Command(ctx context.Context, verb client.Verb, name string) error {
	return h.c.command(ctx, verb, name)
}

func (h slotHost) Refuse(name string) error { return h.c.keeper.Refuse(name) }

func (h slotHost) Unwant(ctx context.Context, name string) error {
	return h.c.command(ctx, orders.Unwant, name)
}
