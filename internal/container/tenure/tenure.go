// Package tenure decides whether this init supervises the profiles and services of its data volume: while it has the lease.
//
// It promises that nothing the lease is for is started without it, and that with the lease lost all of it is dead before another init
// may begin. It owns a goroutine that watches a lease, or waits for one.
package tenure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/config"
	"hinit/internal/container/bootstatus"
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

// Host is the rest of PID 1 as a Tenure needs it. Its methods may be called from any goroutine.
type Host interface {
	Config() *config.Config
	Route() *boot.Route
	// Say writes a line to the container log. Warn does too, and status goes on showing it. Fatal ends the container.
	Say(format string, args ...any)
	Warn(format string, args ...any)
	Fatal(reason string)
	// Withdraw removes the slot of a service.
	Withdraw(ctx context.Context, service string) error
	// Reset forgets what is known of the profiles: another init has them now.
	Reset()
	// TakeOver does what the boot did not do, or did for an earlier tenure. serving ends with the lease.
	TakeOver(ctx, serving context.Context)
}

// Boot is the boot that claims the lease.
type Boot interface {
	// Ready returns when processes may be started.
	Ready()
	// StartCmdEarly starts the CMD while the volume does not answer.
	StartCmdEarly()
}

// Loop is what a Tenure needs of [supervisor.Loop].
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// Tenure is that of one init. Its methods may be called from any goroutine.
type Tenure struct {
	host   Host
	loop   Loop
	lease  *lease.Lease
	steps  *bootstatus.Status // of the boot
	serves atomic.Bool
}

// New makes the Tenure of an init that does not serve yet.
func New(host Host, loop Loop, l *lease.Lease, steps *bootstatus.Status) *Tenure {
	return &Tenure{host: host, loop: loop, lease: l, steps: steps}
}

// Serves reports whether this init supervises the profiles and services: no other one has the lease.
func (t *Tenure) Serves() bool { return t.serves.Load() }

// Serve says whether it may do so now, in a tenure that has just begun.
func (t *Tenure) Serve(serving context.Context) bool {
	t.serves.Store(true) // first: with the lease lost, who watches it says otherwise
	if serving.Err() != nil || t.lease.Check() != nil {
		t.serves.Store(false)
		return false
	}
	return true
}

// TakeOver takes over what [Tenure.Serves] reported in the program before this one.
func (t *Tenure) TakeOver(serves bool) { t.serves.Store(serves) }

func standby() bool { return config.Truthy3(os.Getenv(standbyVariable)) }

// Claim settles whether this init supervises the profiles and services. While another init has the lease it only runs its CMD, if
// it has one. again says that the boot has made the volume ready, so a failure is final. serving ends with the lease, after everything
// that the lease is for has been killed; it is ctx where there is no lease that could be lost. ok is false when there is nothing to do
// at all.
func (t *Tenure) Claim(ctx context.Context, b Boot, again bool) (serving context.Context, ok bool) {
	if !t.claim(ctx, b, again) {
		return ctx, false
	}
	if t.Serves() {
		return t.begin(ctx), true
	}
	return ctx, true
}

func (t *Tenure) claim(ctx context.Context, b Boot, again bool) bool {
	t.serves.Store(true)
	if !t.host.Route().HasProfiles() { // it has no volume, or was made to share a volume with the container that has the gateways
		return true
	}
	failed := false
	err := t.ask(ctx, func(why error) error {
		if failed = t.host.Config().Boot.Strict; failed {
			return why
		}
		t.host.Say("%v within %s; the boot goes on when it does, and nothing but the CMD runs until then", why, volumePatience)
		b.StartCmdEarly()
		return nil
	})
	if failed {
		b.Ready()
		t.host.Fatal(fmt.Sprintf("%v, and boot.strict is set", err))
		return false
	}
	switch {
	case err == nil:
		return true
	case ctx.Err() != nil:
		return false // the container has ended
	case !errors.Is(err, lease.ErrElsewhere):
		if again && !errors.Is(err, fs.ErrNotExist) {
			t.host.Warn("nothing keeps another container from serving the same profiles: %v", err)
		}
		return true
	}
	t.serves.Store(false)
	switch {
	case !t.host.Route().Supervise && standby():
		t.host.Say("%v; this one runs its CMD, and takes over when that one ends", err)
	case !t.host.Route().Supervise:
		t.host.Say("%v; this one runs its CMD and nothing else", err)
	case standby():
		t.host.Say("%v; this one waits, and takes over when that one ends", err)
		b.Ready()
		if t.lease.Acquire(ctx, lease.UntilTaken) != nil {
			return false // the container has ended
		}
		t.serves.Store(true)
	default:
		b.Ready()
		t.host.Fatal(fmt.Sprintf("cannot supervise the gateway: %v; ask that one: hinit start %s; or set %s=1 to wait for it", err, t.host.Route().Profile, standbyVariable))
		return false
	}
	return true
}

// ask asks for the lease until the volume answers. After volumePatience it calls late, once, and ends if that returns an
// error.
func (t *Tenure) ask(ctx context.Context, late func(why error) error) error {
	begin := time.Now()
	err := t.lease.Acquire(ctx, lease.UntilKnown)
	for said := false; errors.Is(err, lease.ErrSlow); err = t.lease.Acquire(ctx, lease.UntilKnown) {
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
		t.steps.Add(client.BootStep{Name: "lease", Seconds: took.Seconds()})
	}
	return err
}

// begin is called by an init that has just taken the lease, or can't have one. The context that it returns ends with the lease,
// after everything that the lease is for has been killed.
func (t *Tenure) begin(ctx context.Context) context.Context {
	lost := t.lease.Lost()
	if lost == nil {
		if t.lease.Check() == nil {
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
			t.fence(ctx, end)
		case <-ctx.Done():
			end(context.Cause(ctx))
		}
	})
	return serving
}

// fence ends everything that the lease was for, before another init may begin with it, and then tries to get the lease back.
func (t *Tenure) fence(ctx context.Context, end context.CancelCauseFunc) {
	t.serves.Store(false)
	t.evict("the lease of the volume is lost")
	why := t.lease.Status().Detail
	end(errors.New(why))
	t.host.Say("%s; its gateways and services were killed, and nothing that is wanted of them was written", why)
	t.evict("the lease of the volume is lost") // what was being registered
	t.host.Reset()
	t.regain(ctx)
}

// evict kills every gateway and every service of hinit.yaml, and forgets them.
func (t *Tenure) evict(reason string) {
	var names []string
	for _, s := range t.loop.Snapshot().Services {
		if t.leased(s.Name, s.Kind) {
			names = append(names, s.Name)
		}
	}
	_ = t.loop.Do(context.Background(), supervisor.Evict{Names: names, Reason: reason}) // it fails when everything ends anyway
	for _, name := range names {
		if err := t.host.Withdraw(context.Background(), name); err != nil {
			t.host.Say("%v", err)
		}
	}
}

// leased says whether a service may run only where the lease is: not the CMD, nor what was put into the scan directory.
func (t *Tenure) leased(name string, kind supervisor.Kind) bool {
	if kind == supervisor.KindGateway {
		return true
	}
	_, own := t.host.Config().Services[name]
	return own && kind == supervisor.KindService
}

// Admit is [supervisor.Config].Admit: it refuses what needs the lease while this init does not have it.
func (t *Tenure) Admit(name string, kind supervisor.Kind) error {
	if !t.leased(name, kind) {
		return nil
	}
	return t.lease.Check()
}

// StandBy waits for the lease beside a boot that did not get it and so serves nothing, if it was asked to.
func (t *Tenure) StandBy(ctx, serving context.Context) {
	if serving == ctx && standby() && t.lease.Status().State == lease.Elsewhere {
		t.wait(ctx)
	}
}

func (t *Tenure) wait(ctx context.Context) {
	guard.Go("waiting for the lease", func() { t.regain(ctx) })
}

// regain waits for the lease and takes over: always with HINIT_STANDBY, else unless another init has it.
func (t *Tenure) regain(ctx context.Context) {
	patience := lease.UntilSettled
	if standby() {
		patience = lease.UntilTaken
	}
	err := t.lease.Acquire(ctx, patience)
	switch {
	case err == nil:
		t.host.TakeOver(ctx, t.begin(ctx)) // first, so that a loss is noticed while the boot goes on
	case !errors.Is(err, lease.ErrElsewhere): // the container has ended
	case t.host.Route().Supervise:
		t.host.Fatal(fmt.Sprintf("cannot supervise the gateway: %v", err))
	default:
		t.host.Say("%v; this one runs its CMD and nothing else", err)
	}
}

// Resume goes on with the lease of the image before this one. One that had none of this kind takes it.
func (t *Tenure) Resume(ctx context.Context) context.Context {
	switch t.lease.Status().State {
	case lease.Held:
		return t.begin(ctx)
	case lease.None:
		if t.Serves() && t.host.Route().HasProfiles() {
			err := t.lease.Acquire(ctx, lease.UntilKnown)
			switch {
			case errors.Is(err, lease.ErrElsewhere):
				t.host.Warn("%v, and so are they by this one, which is new to leases: restart one of the two", err)
				return ctx
			case errors.Is(err, lease.ErrSlow):
				t.serves.Store(false)
				t.wait(ctx)
				return ctx
			}
			return t.begin(ctx)
		}
	case lease.Waiting, lease.Elsewhere:
		if standby() || t.lease.Status().State == lease.Waiting {
			t.wait(ctx)
		}
	}
	return ctx
}

// Status is the lease for people and programs.
func (t *Tenure) Status() *client.Lease {
	s := t.lease.Status()
	out := &client.Lease{
		State: string(s.State), Since: s.Since, Standby: standby(), Epoch: s.Epoch, Heartbeat: s.Heartbeat, Detail: s.Detail,
	}
	if s.Holder.Boot != "" {
		out.Holder = &client.LeaseHolder{Host: s.Holder.Host, Boot: s.Holder.Boot, PID: s.Holder.PID, Since: s.Holder.Since}
	}
	return out
}

// Release gives the lease back at the end, when nothing runs any more.
func (t *Tenure) Release() {
	ctx, done := context.WithTimeout(context.Background(), releaseTime)
	defer done()
	t.lease.Release(ctx)
}
