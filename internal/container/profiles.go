package container

import (
	"context"
	"errors"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/container/units"
	"hinit/internal/gateways"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

// bringUp registers the gateways.
func (c *container) bringUp(ctx context.Context, cfg *config.Config) error {
	b := gateways.Boot{Args: c.args, Services: len(cfg.Services), SetRoute: c.route.Store, Settled: c.generation.Settle, Status: c.boot, Logger: c.Logger}
	if s6 := c.s6.Load(); s6 != nil {
		b.Made = s6.Made
	}
	return c.keeper.BringUp(ctx, b)
}

// openS6 makes the directories of s6 and answers from now on as it does. Where it can't, hinit goes on without.
func (c *container) openS6(ctx context.Context) error {
	s6, err := personality.Open(ctx, s6Host{c.agents(), c.registry, c.keeper}, c.s6Settings())
	if err == nil {
		c.answerAs(s6)
	}
	return err
}

// s6Host is what the personality of s6 calls down to: the rooms as they are.
type s6Host struct {
	*initlog.Logger    // Say, Warn
	*registry.Registry // Register, Do, Snapshot, Identity, Reserved, Room
	*gateways.Keeper   // Command, Refuse, SlotMade, SlotRemoved
}

func (c *container) answerAs(s6 *personality.S6) {
	c.s6.Store(s6)
	c.registry.Follow(s6, s6.Exports())
}

func (c *container) s6Settings() personality.Settings {
	return personality.Settings{
		Agent: c.agent.Actor, Cred: c.agent.Cred, Env: c.units.Env(), Since: c.started,
		Main: c.cfg.Load().Services[registry.MainHermes].Name == "", // else somebody has a use for the name
	}
}

// resumeS6 takes the scan directory over, if the last generation answered as s6. It must be called before the loop runs.
func (c *container) resumeS6(old *scandir.Handover) {
	if old == nil {
		return
	}
	s6, err := personality.TakeOver(s6Host{c.agents(), c.registry, c.keeper}, c.s6Settings(), old)
	if err != nil {
		c.Warn("%v", err)
		return
	}
	c.answerAs(s6)
}

// startStandIn starts the process that stands for a CMD "gateway run". An image without a sleep gets a copy of hinit.
func (c *container) startStandIn(ctx context.Context) {
	if c.s6.Load() == nil || c.route.Load().DashboardOnly {
		return
	}
	path, found := "", false
	look(func() { path, found = boot.Lookup(proc.Getenv(c.units.Env(), "PATH"), "/")(units.StandInName) })
	if !found {
		path = c.generation.Exe
	}
	u := units.StandInUnit(path, c.units.Env(), c.agent.Cred)
	if err := c.registry.Register(ctx, u, supervisor.WantUp); err != nil && !errors.Is(err, supervisor.ErrStopping) {
		c.Warn("cannot start the process that stands for the CMD: %v", err)
	}
}
