// Package leaseholder decides whether this init supervises the profiles and services of its data volume: while it has the lock of the
// volume.
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
	// standbyVariable ends an init that does not get the lock of its volume, if it is 0.
	standbyVariable = "HINIT_STANDBY"
	// again is how long an init that has lost the lock waits before it asks a volume that refuses once more.
	again = time.Second
	// volumePatience is how long the boot waits for a volume that does not answer before it starts the CMD.
	volumePatience = 15 * time.Second
	// slowAnswer is worth a line in the timeline of the boot.
	slowAnswer = time.Second
)

// Host is the rest of PID 1 as a Holder needs it. The functions may be called from any goroutine.
type Host struct {
	*initlog.Logger

	Config func() *config.Config
	Route  func() *boot.Route
	// Fatal ends the container.
	Fatal func(reason string)
	// Withdraw removes the slot of a service.
	Withdraw func(ctx context.Context, service string) error
	// Reset forgets what is known of the profiles: another init may have them now.
	Reset func()
	// Doubt is told of what an agent can cause, such as a file system that keeps no locks.
	Doubt func(line string)
	// TakeOver does what the boot did not do, or did for an earlier term. serving ends with the lock.
	TakeOver func(ctx, serving context.Context)
}

// Boot is the boot that claims the volume.
type Boot interface {
	// Ready returns when processes may be started.
	Ready()
	// StartCmdEarly starts the CMD while the volume does not answer.
	StartCmdEarly()
}

// Loop is what a Holder needs of [supervisor.Loop].
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// Holder decides whether this init serves its volume: it holds the lock of the volume, or waits for it. Its methods may be called from any goroutine.
type Holder struct {
	host   Host
	loop   Loop
	lock   lease.Lock
	volume volume             // the lock, nil in tests
	told   func(words string) // nil without a program of the lease
	asked  string             // who says whether the lock is free
	steps  *bootstatus.Status // of the boot
	serves atomic.Bool
	state  atomic.Pointer[state]
}

// state is what an init has of the lock.
type state struct {
	name   string // client.LeaseHeld, LeaseWaiting or LeaseNone
	since  time.Time
	detail string              // for people; "" while it waits for a holder
	holder func() lease.Holder // while it waits for one
}

// Handover is what is handed over of the lock.
type Handover struct {
	Lease *lease.Handover // nil of a generation that had none
	Alone bool            // it served
}

// volume is a lock that is handed over.
type volume interface {
	lease.Lock
	HandOver() *lease.Handover
	TakeOver(old *lease.Handover)
}

// New makes the Holder of an init that does not serve yet. It opens the volume as the agent's user. program says that a service holds a
// lease, of which Told is told.
func New(host Host, loop Loop, home string, agent *fsutil.Actor, steps *bootstatus.Status, program bool) *Holder {
	if !program {
		v := lease.NewVolume(home, agent, host.Doubt)
		t := newHolder(host, loop, v, steps)
		t.volume = v
		return t
	}
	held := lease.NewHeld(home, agent, host.Doubt)
	t := newHolder(host, loop, held, steps)
	t.volume, t.told, t.asked = held, held.Told, "the service "+config.LeaseName
	return t
}

// Told takes what the program of the lease says of it. It doesn't block.
func (t *Holder) Told(words string) {
	if t.told != nil {
		t.told(words)
	}
}

func newHolder(host Host, loop Loop, lock lease.Lock, steps *bootstatus.Status) *Holder {
	t := &Holder{host: host, loop: loop, lock: lock, steps: steps, asked: "the volume"}
	t.become(client.LeaseNone, "")
	return t
}

func (t *Holder) become(name, detail string) {
	t.state.Store(&state{name: name, since: time.Now(), detail: detail})
}

// Serves reports whether this init supervises the profiles and services.
func (t *Holder) Serves() bool { return t.serves.Load() }

// Serve reports whether it may do so now, in a term that has just begun.
func (t *Holder) Serve(serving context.Context) bool {
	t.serves.Store(true) // first: the goroutine that sees a loss stores false after it
	if serving.Err() != nil || t.Check() != nil {
		t.serves.Store(false)
		return false
	}
	return true
}

// HandOver returns what the next generation takes over.
func (t *Holder) HandOver() Handover { return Handover{t.volume.HandOver(), t.Serves()} }

// TakeOver takes over what the program before this one had.
func (t *Holder) TakeOver(old Handover) {
	t.serves.Store(old.Alone)
	if old.Lease != nil {
		t.volume.TakeOver(old.Lease)
	}
}

// Check says why nothing may be started or recorded for the volume, and returns nil when it may be. It doesn't block. A volume that can't be
// locked forbids nothing.
func (t *Holder) Check() error {
	switch s := t.state.Load(); s.name {
	case client.LeaseNone:
		return nil
	case client.LeaseHeld:
		return t.lock.Check()
	default:
		return errors.New(t.waitsFor(s))
	}
}

// unknown notes that the holder of the lock is not known yet.
func (t *Holder) unknown() {
	t.become(client.LeaseWaiting, fmt.Sprintf("cannot tell whether another hinit serves %q: %s has not answered yet", t.host.Config().Home, t.asked))
}

// waitsFor says why this init serves nothing.
func (t *Holder) waitsFor(s *state) string {
	if s.holder == nil {
		return s.detail
	}
	return fmt.Sprintf("the lock of %q is held by %v", t.host.Config().Home, s.holder())
}

func standby() bool {
	v := os.Getenv(standbyVariable)
	return v == "" || !config.PlainlyFalse(v)
}

// errHeld says that this init was told not to wait for another holder.
var errHeld = errors.New("another process has the lock")

// answer is what came of an Acquire.
type answer struct {
	lost <-chan error
	err  error
}

// ask asks for the lock in a goroutine of its own. busy gets a value before it waits for another holder. An init that was told not to
// wait gives up then, with errHeld.
func (t *Holder) ask(ctx context.Context, wait bool) (got <-chan answer, busy <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(ctx)
	result, waits := make(chan answer, 1), make(chan struct{}, 1)
	guard.Go("asking for the lock of the volume", func() {
		lost, err := t.lock.Acquire(ctx, func(holder func() lease.Holder) {
			t.state.Store(&state{name: client.LeaseWaiting, since: time.Now(), holder: holder})
			waits <- struct{}{}
			if !wait {
				cancel(errHeld)
			}
		})
		if err == nil {
			t.become(client.LeaseHeld, "")
		}
		result <- answer{lost, err}
	})
	return result, waits
}

// Claim settles whether this init supervises the profiles and services. While another process has the lock, it only runs its CMD
// and takes over later, unless HINIT_STANDBY forbids that. made says that the boot has made the volume ready, so a failure is final. serving
// ends with the lock, after everything that the lock is for has been killed; it is ctx for a lock that can't be lost. ok is false when
// the boot is to do nothing more.
func (t *Holder) Claim(ctx context.Context, b Boot, made bool) (serving context.Context, ok bool) {
	t.serves.Store(true)
	if !t.host.Route().HasProfiles() { // it has no volume, or was made to share a volume with the container that has the gateways
		return ctx, true
	}
	begin := time.Now()
	t.unknown()
	got, busy := t.ask(ctx, standby())
	late := time.NewTimer(volumePatience)
	defer late.Stop()
	for {
		select {
		case a := <-got:
			if took := time.Since(begin); took > slowAnswer {
				t.steps.Add(client.BootStep{Name: "lease", Seconds: took.Seconds()})
			}
			switch {
			case a.err == nil:
				return t.begin(ctx, a.lost), true
			case ctx.Err() != nil:
				return ctx, false
			case errors.Is(a.err, errHeld):
				t.serves.Store(false)
				b.Ready()
				t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.waitsFor(t.state.Load()), standbyVariable))
				return ctx, false
			}
			t.become(client.LeaseNone, a.err.Error())
			if made && !errors.Is(a.err, fs.ErrNotExist) {
				t.host.Warn("nothing keeps another container from serving the same profiles: %v", a.err)
			}
			return ctx, true
		case <-busy:
			if !standby() {
				continue // the answer comes at once
			}
			t.serves.Store(false)
			t.host.Say("%s; this container runs its CMD, serves nothing else, and takes over when the lock is free", t.waitsFor(t.state.Load()))
			guard.Go("waiting for the lock of the volume", func() { t.regain(ctx, <-got) })
			return ctx, true
		case <-late.C:
			why := fmt.Sprintf("%s within %s", t.waitsFor(t.state.Load()), volumePatience)
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

// begin returns the context of a term. It ends with the lock, after everything that the lock is for has been killed.
func (t *Holder) begin(ctx context.Context, lost <-chan error) context.Context {
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

// fence ends everything that the lock was for, and then asks for the lock as a newcomer.
func (t *Holder) fence(ctx context.Context, end context.CancelCauseFunc, why error) {
	t.serves.Store(false)
	t.become(client.LeaseWaiting, why.Error())
	t.evict("the lock of the volume is lost")
	end(why)
	t.host.Say("%v; its gateways and services were killed, and nothing that is wanted of them was written", why)
	t.evict("the lock of the volume is lost") // what was being registered
	t.host.Reset()
	got, _ := t.ask(ctx, standby())
	t.regain(ctx, <-got)
}

// regain takes over with the lock that this init has waited for. A volume that refuses is asked again.
func (t *Holder) regain(ctx context.Context, a answer) {
	for ; a.err != nil; a = t.askAgain(ctx) {
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(a.err, errHeld):
			t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.waitsFor(t.state.Load()), standbyVariable))
			return
		}
		t.become(client.LeaseWaiting, a.err.Error())
		if !pause.For(ctx, again) {
			return
		}
	}
	t.host.TakeOver(ctx, t.begin(ctx, a.lost)) // begin comes first, so that a loss is seen while the boot goes on
}

func (t *Holder) askAgain(ctx context.Context) answer {
	got, _ := t.ask(ctx, standby())
	return <-got
}

// Resume goes on with the lock of the image before this one. An image that had another kind of lock hands over none: this one takes
// it, or ends what it must not serve.
func (t *Holder) Resume(ctx context.Context) context.Context {
	if !t.host.Route().HasProfiles() {
		return ctx
	}
	serves := t.Serves()
	t.unknown()
	got, _ := t.ask(ctx, !serves && standby())
	if !serves {
		guard.Go("waiting for the lock of the volume", func() { t.regain(ctx, <-got) })
		return ctx
	}
	a := <-got
	switch {
	case a.err == nil:
		return t.begin(ctx, a.lost)
	case ctx.Err() == nil && !errors.Is(a.err, errHeld):
		t.become(client.LeaseNone, a.err.Error())
		return ctx
	}
	lost := make(chan error, 1)
	lost <- fmt.Errorf("the image before this one had no lock of %q: %w", t.host.Config().Home, a.err)
	return t.begin(ctx, lost)
}

// evict kills every gateway and every service of hinit.yaml, and forgets them.
func (t *Holder) evict(reason string) {
	var names []string
	for _, s := range t.loop.Snapshot().Services {
		if t.leased(s.Name, s.Kind) {
			names = append(names, s.Name)
		}
	}
	_ = t.loop.Do(context.Background(), supervisor.Evict{Names: names, Cause: supervisor.CauseLease, Reason: reason}) // it fails when everything ends anyway
	for _, name := range names {
		if err := t.host.Withdraw(context.Background(), name); err != nil {
			t.host.Say("%v", err)
		}
	}
}

// leased reports whether a service may run only with the lock: neither the CMD nor a service of the scan directory needs it.
func (t *Holder) leased(name string, kind supervisor.Kind) bool {
	if kind == supervisor.KindGateway || name == config.LeaseName {
		return kind == supervisor.KindGateway
	}
	_, own := t.host.Config().Services[name]
	return own && kind == supervisor.KindService
}

// Admit is [supervisor.Config].Admit: it refuses a service that needs the lock while this init does not have it.
func (t *Holder) Admit(name string, kind supervisor.Kind) error {
	if !t.leased(name, kind) {
		return nil
	}
	return t.Check()
}

// Status is the state of the lock for people and programs.
func (t *Holder) Status() *client.Lease {
	s := t.state.Load()
	out := &client.Lease{State: s.name, Since: s.since, Standby: standby(), Detail: s.detail}
	if s.holder != nil {
		h := s.holder()
		out.Holder = &client.LeaseHolder{Host: h.Host, Since: h.Since, PID: h.PID, Command: h.Command}
		out.Detail = t.waitsFor(s)
	}
	return out
}
