package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"hinit/client"
	"hinit/internal/config"
	"hinit/internal/guard"
	"hinit/internal/lease"
	"hinit/supervisor"
)

const (
	// standbyVariable makes an init that does not get the lease of its volume wait for it.
	standbyVariable = "HINIT_STANDBY"
	// releaseTime is how long the end of the container waits for the volume to take the lease back.
	releaseTime = 500 * time.Millisecond
	// leaseAgain is how often a volume that does not answer is asked again.
	leaseAgain = time.Second
	// volumePatience is how long the boot waits for such a volume before it starts the CMD.
	volumePatience = 15 * time.Second
)

func standby() bool { return config.Truthy3(os.Getenv(standbyVariable)) }

// askForLease asks for the lease until the volume answers. After volumePatience it calls late, once, and ends if that returns an
// error.
func (c *container) askForLease(ctx context.Context, late func(why error) error) error {
	begin := time.Now()
	err := c.lease.Acquire(ctx, lease.UntilKnown)
	for said := false; errors.Is(err, lease.ErrSlow); err = c.lease.Acquire(ctx, lease.UntilKnown) {
		if !said && time.Since(begin) > volumePatience {
			said = true
			if err := late(err); err != nil {
				return err
			}
		}
		select {
		case <-time.After(leaseAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if took := time.Since(begin); took > leaseAgain {
		c.boot.Add(client.BootStep{Name: "lease", Seconds: took.Seconds()})
	}
	return err
}

// claim settles whether this init supervises the profiles and services. While another init has the lease it only runs its CMD, if
// it has one. claim returns false when there is nothing to do at all. again says that the boot has made the volume ready, so a
// failure is final.
func (c *container) claim(ctx context.Context, b *bootRun, again bool) bool {
	c.serves.Store(true)
	if !c.route.Load().HasProfiles() { // it has no volume, or was made to share a volume with the container that has the gateways
		return true
	}
	failed := false
	err := c.askForLease(ctx, func(why error) error {
		if failed = c.cfg.Load().Boot.Strict; failed {
			return why
		}
		c.Say("%v within %s; the boot goes on when it does, and nothing but the CMD runs until then", why, volumePatience)
		b.startCmdEarly()
		return nil
	})
	if failed {
		b.ready()
		c.fatal(fmt.Sprintf("%v, and boot.strict is set", err))
		return false
	}
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil:
		return false // the container has ended
	case !errors.Is(err, lease.ErrElsewhere):
		if again && !errors.Is(err, fs.ErrNotExist) {
			c.Warn("nothing keeps another container from serving the same profiles: %v", err)
		}
		return true
	}
	c.serves.Store(false)
	switch {
	case !c.route.Load().Supervise && standby():
		c.Say("%v; this one runs its CMD, and takes over when that one ends", err)
	case !c.route.Load().Supervise:
		c.Say("%v; this one runs its CMD and nothing else", err)
	case standby():
		c.Say("%v; this one waits, and takes over when that one ends", err)
		b.ready()
		if c.lease.Acquire(ctx, lease.UntilTaken) != nil {
			return false // the container has ended
		}
		c.serves.Store(true)
	default:
		b.ready()
		c.fatal(fmt.Sprintf("cannot supervise the gateway: %v; ask that one: hinit start %s; or set %s=1 to wait for it", err, c.route.Load().Profile, standbyVariable))
		return false
	}
	return true
}

// tenure is called by an init that has just taken the lease, or can't have one. The context that it returns ends with the lease,
// after everything that the lease is for has been killed.
func (c *container) tenure(ctx context.Context) context.Context {
	lost := c.lease.Lost()
	if lost == nil {
		if c.lease.Check() == nil {
			return ctx // there is none to be lost
		}
		already := make(chan struct{})
		close(already)
		lost = already
	}
	serving, end := context.WithCancelCause(ctx)
	guard.Go("watching the lease", func() {
		select {
		case <-lost:
			c.fence(ctx, end)
		case <-ctx.Done():
			end(context.Cause(ctx))
		}
	})
	return serving
}

// fence ends everything that the lease was for, before another init may begin with it, and then tries to get the lease back.
func (c *container) fence(ctx context.Context, end context.CancelCauseFunc) {
	c.serves.Store(false)
	c.evict("the lease of the volume is lost")
	why := c.lease.Status().Detail
	end(errors.New(why))
	c.Say("%s; its gateways and services were killed, and nothing that is wanted of them was written", why)
	c.evict("the lease of the volume is lost") // what was being registered
	c.keeper.Reset()
	c.regain(ctx)
}

// evict kills every gateway and every service of hinit.yaml, and forgets them.
func (c *container) evict(reason string) {
	var names []string
	for _, s := range c.loop.Snapshot().Services {
		if c.leased(s.Name, s.Kind) {
			names = append(names, s.Name)
		}
	}
	_ = c.loop.Do(context.Background(), supervisor.Evict{Names: names, Reason: reason}) // it fails when everything ends anyway
	for _, name := range names {
		if err := c.slots().Withdraw(context.Background(), name); err != nil {
			c.Say("%v", err)
		}
	}
}

// leased says whether a service may run only where the lease is: not the CMD, nor what was put into the scan directory.
func (c *container) leased(name string, kind supervisor.Kind) bool {
	if kind == supervisor.KindGateway {
		return true
	}
	_, own := c.cfg.Load().Services[name]
	return own && kind == supervisor.KindService
}

// mayStart implements supervisor.Config.Admit.
func (c *container) mayStart(name string, kind supervisor.Kind) error {
	if !c.leased(name, kind) {
		return nil
	}
	return c.lease.Check()
}

// regain waits for the lease and takes over: always with HINIT_STANDBY, else unless another init has it.
func (c *container) regain(ctx context.Context) {
	patience := lease.UntilSettled
	if standby() {
		patience = lease.UntilTaken
	}
	err := c.lease.Acquire(ctx, patience)
	switch {
	case err == nil:
		c.takeOver(ctx)
	case !errors.Is(err, lease.ErrElsewhere): // the container has ended
	case c.route.Load().Supervise:
		c.fatal(fmt.Sprintf("cannot supervise the gateway: %v", err))
	default:
		c.Say("%v; this one runs its CMD and nothing else", err)
	}
}

// takeOver does what the boot did not do, or did for an earlier tenure.
func (c *container) takeOver(ctx context.Context) {
	serving := c.tenure(ctx) // first, so that a loss is noticed while the boot goes on
	select {
	case <-c.boot.Over():
	case <-ctx.Done():
		return
	}
	c.reloads.Lock()
	defer c.reloads.Unlock()
	if c.reading != nil { // of an earlier tenure, and the volume was slow
		select {
		case <-c.reading:
		case <-serving.Done():
			return
		}
	}
	c.keeper.Reset() // what that has noted since its lease was lost
	c.serves.Store(true)
	if serving.Err() != nil || c.lease.Check() != nil {
		c.serves.Store(false)
		return // it is lost again, and fence waits for it
	}
	cfg := c.cfg.Load()
	c.Say("this container has the lease of %q now and serves its profiles", cfg.Home)
	c.boot.Again()
	if !c.prepared.Load() {
		if err := c.stage2(serving, cfg, nil); err != nil && serving.Err() == nil {
			c.fatal(err.Error())
			return
		}
		c.prepared.Store(serving.Err() == nil) // with the lease lost, what was left out is done when it is back
	}
	c.startServices(serving, cfg)
}

// leaseStatus is the lease for people and programs.
func (c *container) leaseStatus() *client.Lease {
	s := c.lease.Status()
	out := &client.Lease{
		State: string(s.State), Since: s.Since, Standby: standby(), Epoch: s.Epoch, Heartbeat: s.Heartbeat, Detail: s.Detail,
	}
	if s.Holder.Boot != "" {
		out.Holder = &client.LeaseHolder{Host: s.Holder.Host, Boot: s.Holder.Boot, PID: s.Holder.PID, Since: s.Holder.Since}
	}
	return out
}

// releaseLease gives the lease back at the end, when nothing runs any more.
func (c *container) releaseLease() {
	ctx, done := context.WithTimeout(context.Background(), releaseTime)
	defer done()
	c.lease.Release(ctx)
}

// resumeLease goes on with the lease of the image before this one. One that had none of this kind takes it.
func (c *container) resumeLease(ctx context.Context) context.Context {
	switch c.lease.Status().State {
	case lease.Held:
		return c.tenure(ctx)
	case lease.None:
		if c.serves.Load() && c.route.Load().HasProfiles() {
			err := c.lease.Acquire(ctx, lease.UntilKnown)
			switch {
			case errors.Is(err, lease.ErrElsewhere):
				c.Warn("%v, and so are they by this one, which is new to leases: restart one of the two", err)
				return ctx
			case errors.Is(err, lease.ErrSlow):
				c.serves.Store(false)
				guard.Go("waiting for the lease", func() { c.regain(ctx) })
				return ctx
			}
			return c.tenure(ctx)
		}
	case lease.Waiting, lease.Elsewhere:
		if standby() || c.lease.Status().State == lease.Waiting {
			guard.Go("waiting for the lease", func() { c.regain(ctx) })
		}
	}
	return ctx
}
