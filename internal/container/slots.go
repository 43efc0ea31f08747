package container

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/boot"
	"hinit/internal/container/units"
	"hinit/internal/container/voice"
	"hinit/internal/gateways"
	"hinit/internal/guard"
	"hinit/internal/proc"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/internal/s6/scandir"
	"hinit/supervisor"
)

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
	*voice.Voice       // Say, Warn
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
