// Package leaseholder decides whether this init supervises the profiles and services of its data volume: it may only while it
// holds the lock of the volume.
//
// It promises that no profile or service of the volume is started without the lock. When the lock is lost, all of them are killed
// before this init asks for the lock again. It owns a goroutine that waits for the lock, or for its loss.
package leaseholder

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
	"hinit/internal/container/initlog"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
	"hinit/internal/lease"
	"hinit/internal/pause"
	"hinit/supervisor"
)

const (
	// standbyVariable set to 0 makes an init end if another init holds the lock. Otherwise it waits.
	standbyVariable = "HINIT_STANDBY"
	// retryPause is how long an init that has lost the lock waits between two tries after an error.
	retryPause = time.Second
	// volumePatience is how long the boot waits for the volume before it starts the CMD.
	volumePatience = 15 * time.Second
	// slowLock is the shortest wait for the lock that the timeline of the boot shows.
	slowLock = time.Second
)

// Host is the part of PID 1 that a Lease uses. The functions may be called from any goroutine.
type Host struct {
	*initlog.Logger

	Config func() *config.Config
	Route  func() *boot.Route
	// Fatal ends the container.
	Fatal func(reason string)
	// Withdraw removes the slot of a service.
	Withdraw func(ctx context.Context, service string) error
	// Reset forgets the profiles, because another init may serve them now.
	Reset func()
	// Doubt gets warnings that an agent can cause, for instance about a file system without locks.
	Doubt func(line string)
	// TakeOver prepares the volume, if that was not done yet, and starts its profiles and services. It is called when the lock is
	// acquired after the boot. serving ends when the lock is lost.
	TakeOver func(ctx, serving context.Context)
}

// Boot is the boot during which Claim is called.
type Boot interface {
	// Ready blocks until processes may be started.
	Ready()
	// StartCmdEarly starts the CMD while the volume does not answer.
	StartCmdEarly()
}

// Loop is the part of [supervisor.Loop] that a Lease uses.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// Lease acquires the lock of the volume, watches it, and so decides whether this init serves the volume. Its methods may be
// called from any goroutine.
type Lease struct {
	host      Host
	loop      Loop
	lock      lease.Lock
	onMessage func(words string) // gets the messages of the lease program; nil without one
	grantor   string             // name for people of whatever grants the lock
	steps     *bootstatus.Status // status of the boot
	serves    atomic.Bool
	state     atomic.Pointer[state]
}

// state is the state of the lock, as status shows it.
type state struct {
	name   string // client.LeaseHeld, LeaseWaiting or LeaseNone
	since  time.Time
	detail string              // reason, for people; "" while another process holds the lock
	holder func() lease.Holder // names that process; nil otherwise
}

// Handover is the state of the lock at re-execution.
type Handover struct {
	Lease *lease.Handover // nil if the program had no lock of this kind
	Alone bool            // it served the volume
}

// New returns the Lease of an init that does not serve yet. It opens the volume as the agent's user. program says that a service
// of hinit.yaml (the lease program) holds the lease; its messages must be passed to Told.
func New(host Host, loop Loop, home string, agent *fsutil.Actor, steps *bootstatus.Status, program bool) *Lease {
	if !program {
		return newLease(host, loop, lease.NewVolume(home, agent, host.Doubt), steps)
	}
	held := lease.NewHeld(home, agent, host.Doubt)
	t := newLease(host, loop, held, steps)
	t.onMessage, t.grantor = held.Message, "the service "+config.LeaseName
	return t
}

// LeaseMessage handles a message of the lease program. It doesn't block.
func (t *Lease) LeaseMessage(words string) {
	if t.onMessage != nil {
		t.onMessage(words)
	}
}

func newLease(host Host, loop Loop, lock lease.Lock, steps *bootstatus.Status) *Lease {
	t := &Lease{host: host, loop: loop, lock: lock, steps: steps, grantor: "the volume"}
	t.setState(client.LeaseNone, "")
	return t
}

func (t *Lease) setState(name, detail string) {
	t.state.Store(&state{name: name, since: time.Now(), detail: detail})
}

// Serves reports whether this init supervises the profiles and services.
func (t *Lease) Serves() bool { return t.serves.Load() }

// Serve begins to serve the volume, after the lock was acquired. It returns false if the lock is already lost again.
func (t *Lease) Serve(serving context.Context) bool {
	t.serves.Store(true) // stored before the check: the goroutine that sees a loss stores false after it
	if serving.Err() != nil || t.Check() != nil {
		t.serves.Store(false)
		return false
	}
	return true
}

// HandOver returns the state that the next program needs.
func (t *Lease) HandOver() Handover { return Handover{t.lock.HandOver(), t.Serves()} }

// TakeOver restores the state of the program before re-execution.
func (t *Lease) TakeOver(old Handover) {
	t.serves.Store(old.Alone)
	t.lock.TakeOver(old.Lease)
}

// Check returns why no process may be started for the volume and nothing may be recorded, nil if both are allowed. It doesn't
// block. A volume without locks allows everything.
func (t *Lease) Check() error {
	switch s := t.state.Load(); s.name {
	case client.LeaseNone:
		return nil
	case client.LeaseHeld:
		return t.lock.Check()
	default:
		return errors.New(t.whyNotServing(s))
	}
}

// setUnknown notes that it is not known yet who holds the lock.
func (t *Lease) setUnknown() {
	t.setState(client.LeaseWaiting, fmt.Sprintf("cannot tell whether another hinit serves %q: %s has not answered yet", t.host.Config().Home, t.grantor))
}

// whyNotServing says why this init does not serve.
func (t *Lease) whyNotServing(s *state) string {
	if s.holder == nil {
		return s.detail
	}
	return fmt.Sprintf("the lock of %q is held by %v", t.host.Config().Home, s.holder())
}

func standby() bool {
	v := os.Getenv(standbyVariable)
	return v == "" || !config.IsFalse(v)
}

// errHeld means that another process has the lock, and that this init must not wait for it.
var errHeld = errors.New("another process has the lock")

// acquireResult is the result of Acquire. lost gets the reason when the lock is lost.
type acquireResult struct {
	lost <-chan error
	err  error
}

// acquire asks for the lock in a goroutine. busy gets a value if another process has the lock. Then acquire waits for it, or without wait
// gives up with errHeld.
func (t *Lease) acquire(ctx context.Context, wait bool) (got <-chan acquireResult, busy <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(ctx)
	result, waits := make(chan acquireResult, 1), make(chan struct{}, 1)
	guard.Go("asking for the lock of the volume", func() {
		lost, err := t.lock.Acquire(ctx, func(holder func() lease.Holder) {
			t.state.Store(&state{name: client.LeaseWaiting, since: time.Now(), holder: holder})
			waits <- struct{}{}
			if !wait {
				cancel(errHeld)
			}
		})
		if err == nil {
			t.setState(client.LeaseHeld, "")
		}
		result <- acquireResult{lost, err}
	})
	return result, waits
}

// Claim decides during the boot whether this init supervises the profiles and services. While another process has the lock, this
// init runs only its CMD, and takes over later, unless HINIT_STANDBY forbids that. made says that the boot has prepared the
// volume, so a failure is final. serving ends when the lock is lost, after all its services have been killed. It is ctx if the
// lock can't be lost. If ok is false the boot must stop.
func (t *Lease) Claim(ctx context.Context, b Boot, made bool) (serving context.Context, ok bool) {
	t.serves.Store(true)
	if !t.host.Route().HasProfiles() { // there is no volume, or the container with the gateways shares its volume with this one
		return ctx, true
	}
	begin := time.Now()
	t.setUnknown()
	got, busy := t.acquire(ctx, standby())
	late := time.NewTimer(volumePatience)
	defer late.Stop()
	for {
		select {
		case a := <-got:
			if took := time.Since(begin); took > slowLock {
				t.steps.Add(client.BootStep{Name: "lease", Seconds: took.Seconds()})
			}
			switch {
			case a.err == nil:
				return t.watchLock(ctx, a.lost), true
			case ctx.Err() != nil:
				return ctx, false
			case errors.Is(a.err, errHeld):
				t.serves.Store(false)
				b.Ready()
				t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.whyNotServing(t.state.Load()), standbyVariable))
				return ctx, false
			}
			t.setState(client.LeaseNone, a.err.Error())
			if made && !errors.Is(a.err, fs.ErrNotExist) {
				t.host.Warn("nothing keeps another container from serving the same profiles: %v", a.err)
			}
			return ctx, true
		case <-busy:
			if !standby() {
				continue // ask gives up and answers at once
			}
			t.serves.Store(false)
			t.host.Say("%s; this container runs its CMD, serves nothing else, and takes over when the lock is free", t.whyNotServing(t.state.Load()))
			guard.Go("waiting for the lock of the volume", func() { t.regain(ctx, got) })
			return ctx, true
		case <-late.C:
			why := fmt.Sprintf("%s within %s", t.whyNotServing(t.state.Load()), volumePatience)
			if t.host.Config().Boot.Strict {
				b.Ready()
				t.host.Fatal(why + ", and boot.strict is set")
				return ctx, false
			}
			t.host.Say("%s; the boot goes on when it does, and nothing but the CMD runs until then", why)
			b.StartCmdEarly()
		case <-ctx.Done():
			return ctx, false
		}
	}
}

// watchLock watches the lock. It returns a context that ends when the lock is lost, after all its services have been killed.
func (t *Lease) watchLock(ctx context.Context, lost <-chan error) context.Context {
	if lost == nil {
		return ctx
	}
	serving, end := context.WithCancelCause(ctx)
	guard.Go("watching the lock of the volume", func() {
		select {
		case why := <-lost:
			t.fence(ctx, end, why)
		case <-ctx.Done():
			end(context.Cause(ctx))
		}
	})
	return serving
}

// fence handles the loss of the lock: it kills all services that need the lock, and then asks for the lock again.
func (t *Lease) fence(ctx context.Context, end context.CancelCauseFunc, why error) {
	t.serves.Store(false)
	t.setState(client.LeaseWaiting, why.Error())
	t.evict("the lock of the volume is lost")
	end(why)
	t.host.Say("%v; its gateways and services were killed, and nothing that is wanted of them was written", why)
	t.evict("the lock of the volume is lost") // once more, for services that were just being registered
	t.host.Reset()
	got, _ := t.acquire(ctx, standby())
	t.regain(ctx, got)
}

// regain waits for the lock that acquire asks for. With the lock it takes over; after an error it asks again.
func (t *Lease) regain(ctx context.Context, got <-chan acquireResult) {
	for {
		a := <-got
		switch {
		case a.err == nil:
			t.host.TakeOver(ctx, t.watchLock(ctx, a.lost)) // begin first, so that a loss during the take-over is noticed
			return
		case ctx.Err() != nil:
			return
		case errors.Is(a.err, errHeld):
			t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.whyNotServing(t.state.Load()), standbyVariable))
			return
		}
		t.setState(client.LeaseWaiting, a.err.Error())
		if !pause.For(ctx, retryPause) {
			return
		}
		got, _ = t.acquire(ctx, standby())
	}
}

// Resume continues with the handed-over lock after re-execution. If the old program had another kind of lock, it hands over none.
// Resume then acquires the lock, or kills the services that need it.
func (t *Lease) Resume(ctx context.Context) context.Context {
	if !t.host.Route().HasProfiles() {
		return ctx
	}
	serves := t.Serves()
	t.setUnknown()
	got, _ := t.acquire(ctx, !serves && standby())
	if !serves {
		guard.Go("waiting for the lock of the volume", func() { t.regain(ctx, got) })
		return ctx
	}
	a := <-got
	switch {
	case a.err == nil:
		return t.watchLock(ctx, a.lost)
	case ctx.Err() == nil && !errors.Is(a.err, errHeld):
		t.setState(client.LeaseNone, a.err.Error())
		return ctx
	}
	lost := make(chan error, 1)
	lost <- fmt.Errorf("the image before this one had no lock of %q: %w", t.host.Config().Home, a.err)
	return t.watchLock(ctx, lost)
}

// evict kills every gateway and every service of hinit.yaml, and makes the supervisor forget them.
func (t *Lease) evict(reason string) {
	var names []string
	for _, s := range t.loop.Snapshot().Services {
		if t.leased(s.Name, s.Kind) {
			names = append(names, s.Name)
		}
	}
	_ = t.loop.Do(context.Background(), supervisor.Evict{Names: names, Cause: supervisor.CauseLease, Reason: reason}) // fails only if the container ends
	for _, name := range names {
		if err := t.host.Withdraw(context.Background(), name); err != nil {
			t.host.Say("%v", err)
		}
	}
}

// leased reports whether a service may run only with the lock. The CMD and services of the scan directory may run without.
func (t *Lease) leased(name string, kind supervisor.Kind) bool {
	if kind == supervisor.KindGateway || name == config.LeaseName {
		return kind == supervisor.KindGateway
	}
	_, own := t.host.Config().Services[name]
	return own && kind == supervisor.KindService
}

// Admit implements [supervisor.Config].Admit: it refuses a service that needs the lock while this init does not have it.
func (t *Lease) Admit(name string, kind supervisor.Kind) error {
	if !t.leased(name, kind) {
		return nil
	}
	return t.Check()
}

// Status returns the state of the lock for the API.
func (t *Lease) Status() *client.Lease {
	s := t.state.Load()
	out := &client.Lease{State: s.name, Since: s.since, Standby: standby(), Detail: s.detail}
	if s.holder != nil {
		h := s.holder()
		out.Holder = &client.LeaseHolder{Host: h.Host, Since: h.Since, PID: h.PID, Command: h.Command}
		out.Detail = t.whyNotServing(s)
	}
	return out
}
