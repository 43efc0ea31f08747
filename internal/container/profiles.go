package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/initlog"
	"hinit/internal/container/units"
	"hinit/internal/control/show"
	"hinit/internal/gateways"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

// profilesBudget is how long the boot waits for the profiles. A volume that answers later still gets its gateways.
const profilesBudget = 15 * time.Second

// profiles registers the gateways and begins to watch the volume. After profilesBudget the boot goes on without those that are missing.
func (c *container) profiles(ctx context.Context, cfg *config.Config) error {
	done := make(chan error, 1)
	read := make(chan struct{})
	c.reading = read
	guard.Go("bringing up the profiles", func() {
		defer close(read)
		if err := c.holder.Check(); err != nil {
			c.generation.Settle()
			done <- err
			return
		}
		if c.route.Load().Supervise {
			c.whichProfile()
		}
		c.readTopology()
		c.warnOfSlowStop()
		known, err := c.keeper.Boot(ctx, gateways.Boot{
			Args: c.args, Services: len(cfg.Services), Found: c.boot.Found, Log: func(write func() error) { c.logSoon(ctx, write) },
		})
		_ = c.registry.Meet(ctx, registry.NeedProfiles) // it fails when the container has ended
		if !c.route.Load().DashboardOnly {              // such a container shares its volume with one that has the gateways
			c.keeper.Start(ctx, known)
		}
		guard.Go("waiting for the boot log", func() { // another image would not write it
			<-c.logged
			c.generation.Settle()
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
	if b := c.boot.Profiles(c.broughtUp()); b != nil && b.Done > 0 {
		c.Say("boot: profiles %s of %s after %s; the boot goes on while the others come up", show.Thousands(b.Done), show.Thousands(b.Profiles), profilesBudget)
		return nil
	}
	return fmt.Errorf("cannot read the profiles: %q did not answer within %s; their gateways start when it does", cfg.Home, profilesBudget)
}

// whichProfile settles whose gateway the CMD asked for: the one it named, or the one the agent's commands would use.
func (c *container) whichProfile() {
	if !c.route.Load().ProfileNamed {
		active, err := c.store.Active()
		if err != nil {
			c.Warn("cannot tell which profile is selected, so it is the default one: %v", err)
		} else if _, err := c.store.Profile(active); err == nil {
			route := *c.route.Load()
			route.Profile = active
			c.route.Store(&route)
		}
	}
	for line := range strings.Lines(boot.Breadcrumb(c.route.Load().Profile)) {
		c.Line(strings.TrimSuffix(line, "\n"))
	}
	if len(c.route.Load().Ignored) > 0 {
		c.Warn("these words of the CMD have no effect on a supervised gateway: %s", strings.Join(c.route.Load().Ignored, " "))
	}
}

// readTopology tells gateways, from their next start on, what an operator has asked for.
func (c *container) readTopology() {
	if t, err := c.store.Topology(os.Getenv, ""); err == nil { // else the boot pass warns
		c.units.SetTopology(t)
	}
}

// broughtUp is how many profiles have a gateway.
func (c *container) broughtUp() int {
	n := 0
	for _, s := range c.loop.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			n++
		}
	}
	return n
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
	var made <-chan struct{}
	s6 := c.s6.Load()
	if s6 != nil {
		made = s6.Made()
	}
	guard.Go("writing the boot log", func() {
		defer close(logged)
		if s6 != nil && !within(ctx, slotTime, made) && ctx.Err() == nil {
			c.Warn("not all slots of gateways are made after %s, because the file system of the scan directory is slow; the others follow", slotTime)
		}
		if err := write(); err != nil && !errors.Is(err, unix.EROFS) { // of a read-only volume the boot has said that
			c.Warn("cannot write the boot log: %v", err)
		}
	})
}

// slotsForCmd lets a CMD that looks for slots find them, unless there are very many.
func (c *container) slotsForCmd(ctx context.Context) {
	s6 := c.s6.Load()
	if s6 == nil || c.reading == nil || c.route.Load().Supervise || c.route.Load().Foreground {
		return
	}
	select {
	case <-c.reading:
	default:
		return // the volume hangs
	}
	ctx, done := context.WithTimeout(ctx, cmdSlotTime)
	defer done()
	_ = within(ctx, cmdSlotTime, s6.Made()) && within(ctx, cmdSlotTime, c.logged) // it starts in any case
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
