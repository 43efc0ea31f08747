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
	"hinit/internal/pause"
	"hinit/internal/registry"
	"hinit/internal/s6/personality"
	"hinit/supervisor"
)

// bootRun is the state of one boot. The boot has its own goroutine beside the supervisor's loop, so that hinit handles signals
// and reaps orphans even while a disk hangs.
type bootRun struct {
	c            *container
	ctx          context.Context //nolint:containedctx // context of the container
	awaitThreads func()          // blocks until all threads of this process exist; after that, services may use up the PIDs
	controlOpen  <-chan struct{} // closed when the control socket is open, or can't be opened
	scanDirDone  <-chan struct{} // closed when the s6 scan directory exists, or can't be made
	cmdStarted   bool            // whether the container's CMD was started
}

// bootUp boots the container. awaitThreads blocks until all threads of this process exist. bootUp calls it before the first
// service can use up the PIDs.
func (c *container) bootUp(ctx context.Context, awaitThreads func()) {
	defer func() {
		c.gateways.AwaitProfilesRead(ctx) // the boot may be over before the profiles are read
		c.boot.End()
		c.preparer.NotifyOuterInit()
	}()
	c.registry.ChangeLock.Lock()
	defer c.registry.ChangeLock.Unlock()
	cfg := c.cfg.Load()
	for _, w := range slices.Concat(cfg.Warnings, config.UnknownVariables(os.Environ())) {
		c.Warn("%s", w)
	}
	b := &bootRun{c: c, ctx: ctx, awaitThreads: awaitThreads}
	// Prepare the volume, the control socket and the s6 directories at the same time, because they are independent. The
	// container's first process may need all three, so Ready waits for them.
	b.controlOpen = guard.GoWithDone("opening the control socket", func() { b.openControl(cfg) })
	b.scanDirDone = guard.GoWithDone("making the directories of s6", b.openS6)
	c.preparer.ExpectServices(cfg)
	if cfg.Services[config.LeaseName].Enabled && c.runPlan.Load().HasProfiles() {
		b.Ready()
		if err := c.registry.RegisterLease(ctx, cfg); err != nil {
			c.endAfterFailedBoot(err.Error())
			return
		}
	}
	serving, ok := c.lease.ClaimAtBoot(ctx, b, false)
	if !ok {
		return
	}
	if c.lease.Serves() {
		if !c.prepare(serving, cfg, b) {
			return
		}
		// ClaimAtBoot found no data directory to lock. The boot has made the directory since, so call it again.
		if c.lease.Status().State == client.LeaseNone && !c.runPlan.Load().ServicesOnly {
			if serving, ok = c.lease.ClaimAtBoot(ctx, b, true); !ok {
				return
			}
		}
	}
	b.Ready()
	if !c.lease.Serves() {
		_ = c.registry.MarkNeedMet(ctx, registry.NeedBoot) // MarkNeedMet fails only if the container has ended
	} else if !c.startServices(serving, cfg) && serving.Err() == nil {
		return
	}
	b.startCmd()
	if c.lease.Serves() && c.runPlan.Load().HasProfiles() {
		guard.Go("removing what profile commands have left", func() {
			if err := c.store.RemoveTemporaries(c.startedAt); err != nil {
				c.Warn("%v", err)
			}
		})
	} else {
		c.generation.MarkBootDone() // gateways.BringUp does not call it in this case
	}
}

// prepare prepares the data volume and runs the boot hooks, before the first service starts. It returns false if the container
// must end. b is nil if the boot is over.
func (c *container) prepare(serving context.Context, cfg *config.Config, b *bootRun) bool {
	if err := c.preparer.Run(serving, cfg, b.Ready); err != nil && serving.Err() == nil {
		b.Ready()
		c.endAfterFailedBoot(err.Error())
		return false
	}
	c.volumePrepared.Store(serving.Err() == nil) // false if the lease was lost, so that takeOverVolume prepares the volume again
	return true
}

// openControl opens the control socket. After a failure, the status shows a failed boot step, and the boot continues.
func (b *bootRun) openControl(cfg *config.Config) {
	path := ""
	if cfg.IsSet("control.socket") {
		path = cfg.Control.Socket
	}
	step := b.c.preparer.MeasureStep("control", func() error {
		return errors.Join(b.c.control.OpenAt(path), b.c.publishIDs(cfg))
	})
	step.Parallel = true
	b.c.boot.InsertStep(0, step) // this step began first, so it comes first in the list
}

// publishIDs writes the ids of the agent's user and the isolated profiles into the control directory, for the exec shim.
func (c *container) publishIDs(cfg *config.Config) error {
	return c.agent.PublishIDs(c.control.Dir(), cfg, c.Say)
}

// applyConfig makes cfg the current configuration, after a reload.
func (c *container) applyConfig(cfg *config.Config) {
	c.cfg.Store(cfg)
	if err := c.publishIDs(cfg); err != nil {
		c.Say("reload: cannot tell the exec shim which profiles are isolated: %v; restart the container — continuing", err)
	}
}

// openS6 makes the scan directory of s6, if this container acts as s6 (see package personality).
func (b *bootRun) openS6() {
	c := b.c
	if c.runPlan.Load().ServicesOnly || !personality.ActsAsS6() {
		return
	}
	step := c.preparer.MeasureStep("s6", func() error {
		err := c.s6.Open(b.ctx)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) { // without write access there is no scan directory, which is no failure
			c.Warn("%v", err)
			return nil
		}
		return err
	})
	<-b.controlOpen
	step.Parallel = true
	c.boot.InsertStep(1, step)
}

// Ready blocks until the container may start processes: all threads exist, and the control socket and the s6 directories are
// open. After the boot, when b is nil, it returns at once.
func (b *bootRun) Ready() {
	if b != nil {
		b.awaitThreads()
		<-b.controlOpen
		<-b.scanDirDone
	}
}

// startCmd starts the container's CMD, or a placeholder process in its place. A second call does nothing.
func (b *bootRun) startCmd() {
	if b.cmdStarted {
		return
	}
	b.cmdStarted = true
	if s6 := b.c.s6.S6(); s6 != nil {
		b.c.gateways.AwaitSlots(b.ctx, s6.QueueDone())
		_ = s6.Scan(b.ctx)
	}
	if !b.c.runPlan.Load().Supervise {
		b.c.preparer.StartCmd(b.ctx)
	} else if b.c.s6.S6() != nil {
		b.c.preparer.StartPlaceholder(b.ctx, b.c.generation.Exe)
	}
}

// StartCmdEarly starts the CMD during the boot if the data volume does not answer (see [leaseholder.Boot]).
func (b *bootRun) StartCmdEarly() {
	b.Ready()
	_ = b.c.registry.MarkNeedMet(b.ctx, registry.NeedBoot)
	b.startCmd()
}

// takeOverVolume prepares the volume if necessary, and starts profiles and services, when this init gets the lock of the volume
// after the boot. serving ends when the lock is lost.
func (c *container) takeOverVolume(ctx, serving context.Context) {
	if !pause.Until(ctx, c.boot.Ended()) {
		return
	}
	c.registry.ChangeLock.Lock()
	defer c.registry.ChangeLock.Unlock()
	c.gateways.AwaitProfilesRead(serving) // an earlier read may still wait for a slow volume
	if serving.Err() != nil {
		return
	}
	c.gateways.DropRecords() // drop the records that were made after the loss of the lock
	if !c.lease.BeginServing(serving) {
		return // the lock is lost again, and its watcher will call takeOverVolume again
	}
	cfg := c.cfg.Load()
	c.Say("this container has the lock of %q now and serves its profiles", cfg.Home)
	c.boot.ForgetSteps()
	if c.volumePrepared.Load() || c.prepare(serving, cfg, nil) {
		c.startServices(serving, cfg)
	}
}

// startServices registers the services and gateways, and the supervisor starts those that are wanted up. It returns false if
// the container must end.
func (c *container) startServices(ctx context.Context, cfg *config.Config) bool {
	c.preparer.RunStep("services", func() error { return c.registry.RegisterServices(ctx, cfg) })
	if !c.runPlan.Load().ServicesOnly {
		c.preparer.RunStep("profiles", func() error {
			return c.gateways.StartAtBoot(ctx, gateways.BootInput{
				ServiceCount: len(cfg.Services), SlotsMade: c.s6.SlotsMade, SetRunPlan: c.runPlan.Store, OnProfilesKnown: c.generation.MarkBootDone, Status: c.boot, Logger: c.Logger, DelayForMemory: c.health.HoldBackGateways,
			})
		})
	}
	if cfg.Boot.Strict && c.boot.Failed() {
		c.endAfterFailedBoot("a boot step has failed, and boot.strict is set")
		return false
	}
	if err := c.registry.MarkNeedMet(ctx, registry.NeedBoot); err != nil {
		return false
	}
	c.registry.Timetable.Serve(ctx, cfg, false)
	c.preparer.LogTimeline()
	c.preparer.RepairOwners(ctx, true)
	return true
}

// endAfterFailedBoot ends the container because the boot has failed.
func (c *container) endAfterFailedBoot(reason string) {
	c.Say("%s", reason)
	c.Say("fatal: stopping the container")
	c.loop.Post(supervisor.Shutdown{Code: 1, Reason: "the boot has failed"})
}
