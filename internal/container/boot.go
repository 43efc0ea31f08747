package container

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/gateways"
	"hinit/internal/guard"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/supervisor"
)

// bootRun is the boot of this container. It runs beside the supervisor's loop, so signals and orphans are handled even if a disk
// hangs.
type bootRun struct {
	c           *container
	ctx         context.Context //nolint:containedctx // context of the container
	threads     func()          // blocks until this program's threads are made, which must happen before services can use up the process numbers
	controlOpen chan struct{}   // closed when the control socket is open, or has failed to open
	slots       chan struct{}   // closed when the directories of s6 are made, or making them has failed
	cmd         bool            // the CMD was started
}

// bootUp boots the container. threads blocks until this program has its threads; later, services may have used up the process
// numbers.
func (c *container) bootUp(ctx context.Context, threads func()) {
	defer c.bootIsOver(ctx)
	c.registry.Turn.Lock()
	defer c.registry.Turn.Unlock()
	cfg := c.cfg.Load()
	for _, w := range slices.Concat(cfg.Warnings, config.UnknownVariables(os.Environ())) {
		c.Warn("%s", w)
	}
	b := &bootRun{c: c, ctx: ctx, threads: threads, controlOpen: make(chan struct{}), slots: make(chan struct{})}
	// The work on the volume doesn't need the socket or the slots. The first process may need them.
	guard.Go("opening the control socket", func() { b.openControl(cfg) })
	guard.Go("making the directories of s6", b.openS6)
	c.stage.ExpectServices(cfg)
	if cfg.Services[config.LeaseName].Enabled && c.route.Load().HasProfiles() {
		b.Ready()
		if err := c.registry.Lease(ctx, cfg); err != nil {
			c.fatal(err.Error())
			return
		}
	}
	serving, ok := c.lease.Claim(ctx, b, false)
	if !ok {
		return
	}
	if c.lease.Serves() {
		if !c.prepare(serving, cfg, b) {
			return
		}
		if c.lease.Status().State == client.LeaseNone && !c.route.Load().Plain { // there was no data directory before
			if serving, ok = c.lease.Claim(ctx, b, true); !ok {
				return
			}
		}
	}
	b.Ready()
	if !c.lease.Serves() {
		_ = c.registry.Meet(ctx, registry.NeedBoot) // fails only if the container has ended
	} else if !c.startServices(serving, cfg) && serving.Err() == nil {
		return
	}
	b.startCmd()
	if c.lease.Serves() && c.route.Load().HasProfiles() {
		guard.Go("removing what profile commands have left", func() {
			if err := c.store.Sweep(c.started); err != nil {
				c.Warn("%v", err)
			}
		})
	} else {
		c.generation.Settle() // otherwise the boot of the profiles does it
	}
}

// prepare makes the container ready for its first service. It returns false if the container must end. b is nil after the boot.
func (c *container) prepare(serving context.Context, cfg *config.Config, b *bootRun) bool {
	if err := c.stage.Run(serving, cfg, b.Ready); err != nil && serving.Err() == nil {
		b.Ready()
		c.fatal(err.Error())
		return false
	}
	c.prepared.Store(serving.Err() == nil) // false if the lease was lost meanwhile: the next term must repeat it
	return true
}

// openControl opens the control socket.
func (b *bootRun) openControl(cfg *config.Config) {
	defer close(b.controlOpen)
	path := ""
	if cfg.Origin("control.socket") != "default" {
		path = cfg.Control.Socket
	}
	step := b.c.stage.Measure("control", func() error {
		return errors.Join(b.c.control.OpenAt(path), b.c.publish(cfg))
	})
	step.Beside = true
	b.c.boot.Insert(0, step) // it began first
}

// publish informs the exec shim about the agent and the isolated profiles.
func (c *container) publish(cfg *config.Config) error {
	return c.agent.PublishIDs(c.control.Dir(), cfg, c.Say)
}

// change makes a new configuration the current one.
func (c *container) change(cfg *config.Config) {
	c.cfg.Store(cfg)
	if err := c.publish(cfg); err != nil {
		c.Say("reload: cannot tell the exec shim which profiles are isolated: %v; restart the container — continuing", err)
	}
}

// openS6 makes the directories of s6, if this container acts as s6.
func (b *bootRun) openS6() {
	defer close(b.slots)
	c := b.c
	if c.route.Load().Plain || !personality.Wanted() {
		return
	}
	step := c.stage.Measure("s6", func() error {
		err := c.s6.Open(b.ctx)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) { // no write access there, which is no failure
			c.Warn("%v", err)
			return nil
		}
		return err
	})
	<-b.controlOpen
	step.Beside = true
	c.boot.Insert(1, step)
}

// Ready blocks until processes may be started. A nil b stands for a boot that is over.
func (b *bootRun) Ready() {
	if b != nil {
		b.threads()
		<-b.controlOpen
		<-b.slots
	}
}

// startCmd starts the CMD, once.
func (b *bootRun) startCmd() {
	if b.cmd {
		return
	}
	b.cmd = true
	if s6 := b.c.s6.On(); s6 != nil {
		b.c.gateways.AwaitSlots(b.ctx, s6.Made())
		_ = s6.Scan(b.ctx) // fails only if the container has ended
	}
	if !b.c.route.Load().Supervise {
		b.c.stage.StartCmd(b.ctx)
	} else if b.c.s6.On() != nil {
		b.c.stage.StartStandIn(b.ctx, b.c.generation.Exe)
	}
}

// StartCmdEarly starts the CMD while the volume does not answer.
func (b *bootRun) StartCmdEarly() {
	b.Ready()
	_ = b.c.registry.Meet(b.ctx, registry.NeedBoot) // fails only if the container has ended
	b.startCmd()
}

// bootIsOver reports the end of the boot to all who wait for it. It first waits until the profiles are known, which may take
// longer than the boot.
func (c *container) bootIsOver(ctx context.Context) {
	c.gateways.AwaitRead(ctx)
	c.boot.End()
	c.stage.NotifyOuterInit()
}

// takeOver starts the profiles and services when the lock is acquired after the boot. If the volume was not prepared yet,
// takeOver prepares it first. serving ends when the lock is lost.
func (c *container) takeOver(ctx, serving context.Context) {
	select {
	case <-c.boot.Over():
	case <-ctx.Done():
		return
	}
	c.registry.Turn.Lock()
	defer c.registry.Turn.Unlock()
	c.gateways.AwaitRead(serving) // the profiles of an earlier term may still be being read from a slow volume
	if serving.Err() != nil {
		return
	}
	c.gateways.Reset() // discard the notes of the gateways' manager from after the loss of the lease
	if !c.lease.Serve(serving) {
		return // the lock is lost again; the goroutine that watches it waits for it
	}
	cfg := c.cfg.Load()
	c.Say("this container has the lock of %q now and serves its profiles", cfg.Home)
	c.boot.ForgetSteps()
	if c.prepared.Load() || c.prepare(serving, cfg, nil) {
		c.startServices(serving, cfg)
	}
}

// startServices registers the services and gateways, and starts the wanted ones. It returns false if the container must end.
func (c *container) startServices(ctx context.Context, cfg *config.Config) bool {
	c.stage.Phase("services", func() error { return c.registry.Services(ctx, cfg) })
	if !c.route.Load().Plain {
		c.stage.Phase("profiles", func() error {
			return c.gateways.BringUp(ctx, gateways.Boot{
				Args: c.args, Services: len(cfg.Services), Made: c.s6.Made, SetRoute: c.route.Store, Settled: c.generation.Settle, Status: c.boot, Logger: c.Logger, Admit: c.health.Admit,
			})
		})
	}
	if cfg.Boot.Strict && c.boot.Failed() {
		c.fatal("a boot step has failed, and boot.strict is set")
		return false
	}
	if err := c.registry.Meet(ctx, registry.NeedBoot); err != nil {
		return false
	}
	c.registry.Times.Serve(ctx, cfg, false)
	c.stage.SayTimeline()
	c.stage.RepairOwners(ctx, true)
	return true
}

// fatal ends the container because the boot has failed.
func (c *container) fatal(reason string) {
	c.Say("%s", reason)
	c.Say("fatal: stopping the container")
	c.loop.Post(supervisor.Shutdown{Code: 1, Reason: "the boot has failed"})
}
