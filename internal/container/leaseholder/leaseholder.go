// Package leaseholder decides whether this init serves its data volume. This init may supervise the profiles and services of
// the volume only while it holds the lock of the volume.
//
// Without the lock, no profile or service of the volume starts. When the lock is lost, the package kills all of them before it
// asks for the lock again. It owns a goroutine that waits for the lock, or for its loss.
package leaseholder

import (
	"cmp"
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
	// standbyVariable is an environment variable. It says what the container does while another init holds the lock: with the
	// value 0 it ends, otherwise it waits.
	standbyVariable = "HINIT_STANDBY"
	// retryPause is the time between an error and the next attempt to get the lock back.
	retryPause = time.Second
	// volumeTimeout is how long the boot waits for the volume before it starts the CMD anyway.
	volumeTimeout = 15 * time.Second
	// slowLockThreshold is the minimum wait for the lock that appears in the timeline of the boot.
	slowLockThreshold = time.Second
)

// Host is the part of PID 1 that a Lease uses. Any goroutine may call the functions.
type Host struct {
	*initlog.Logger

	Config     func() *config.Config
	RunPlan    func() *boot.RunPlan
	Fatal      func(reason string)
	RemoveSlot func(ctx context.Context, service string) error
	// DropProfiles drops all records about the profiles, because another init may now serve them.
	DropProfiles func()
	// WarnAgents gets warnings that an agent can cause, for instance about a file system without locks.
	WarnAgents func(line string)
	// TakeOver prepares the volume if necessary, and starts its profiles and services, when this init gets the lock after the
	// boot. serving ends when the lock is lost.
	TakeOver func(ctx, serving context.Context)
}

// Boot is the part of the boot that ClaimAtBoot uses.
type Boot interface {
	// Ready blocks until the container may start processes, see container.bootRun.
	Ready()
	// StartCmdEarly starts the CMD during the boot, because the volume does not answer.
	StartCmdEarly()
}

// Loop is the part of [supervisor.Loop] that a Lease uses.
type Loop interface {
	Do(ctx context.Context, e supervisor.Event) error
	Snapshot() *supervisor.Snapshot
}

// Lease gets the lock of the volume, watches it, and so decides whether this init serves the volume. Any goroutine may call
// its methods.
type Lease struct {
	host        Host
	loop        Loop
	lock        lease.Lock
	onMessage   func(words string) // handles each message of the lease program
	grantorName string             // name of the grantor of the lock in messages: the volume, or the lease program
	steps       *bootstatus.Status // status of the boot
	isServing   atomic.Bool
	state       atomic.Pointer[servingState]
}

// servingState is the state of the lock, for the status.
type servingState struct {
	name   string // state as in the API: client.LeaseHeld, LeaseWaiting or LeaseNone
	since  time.Time
	detail string              // the reason in words; "" while another process holds the lock
	holder func() lease.Holder // returns the other process that holds the lock; nil without another holder
}

// Handover is the state of the lock for the next program of a re-execution.
type Handover struct {
	Lease      *lease.Handover // state of the lock; nil if the old program had no such lock
	WasServing bool            `reexec:"Alone"`      // the old program served the volume
	Since      time.Time       `reexec:"LeaseSince"` // when the lock got into its present state
}

// New returns the Lease of an init that does not serve yet. It opens the volume as the agent's user. program means that the
// lease program, a service of hinit.yaml, holds a lease for this volume; pass its messages to LeaseMessage.
func New(host Host, loop Loop, home string, agent *fsutil.Actor, steps *bootstatus.Status, program bool) *Lease {
	if !program {
		return newLease(host, loop, lease.NewVolume(home, agent, host.WarnAgents), steps)
	}
	held := lease.NewLeasedVolume(home, agent, host.WarnAgents)
	t := newLease(host, loop, held, steps)
	t.onMessage, t.grantorName = held.HandleMessage, "the service "+config.LeaseName
	return t
}

// LeaseMessage handles a message of the lease program. It does not block.
func (t *Lease) LeaseMessage(text string) { t.onMessage(text) }

func newLease(host Host, loop Loop, lock lease.Lock, steps *bootstatus.Status) *Lease {
	t := &Lease{host: host, loop: loop, lock: lock, steps: steps, onMessage: func(string) {}, grantorName: "the volume"}
	t.setState(client.LeaseNone, "", nil)
	return t
}

// setState changes the state. While the name stays the same, the time stays, too.
func (t *Lease) setState(name, detail string, holder func() lease.Holder) {
	since := time.Now()
	if old := t.state.Load(); old != nil && old.name == name {
		since = old.since
	}
	t.state.Store(&servingState{name, since, detail, holder})
}

// Serves reports whether this init serves the volume, so that it supervises its profiles and services.
func (t *Lease) Serves() bool { return t.isServing.Load() }

// BeginServing records that this init serves the volume, because it has got the lock. It returns false if the lock is lost again.
func (t *Lease) BeginServing(serving context.Context) bool {
	// store true first: if the lock is lost now, the goroutine that notices it stores false, which must come last
	t.isServing.Store(true)
	if serving.Err() != nil || t.Check() != nil {
		t.isServing.Store(false)
		return false
	}
	return true
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (t *Lease) HandOver() Handover {
	return Handover{t.lock.HandOver(), t.Serves(), t.state.Load().since}
}

// TakeOver restores the state from the previous program.
func (t *Lease) TakeOver(old Handover) {
	t.isServing.Store(old.WasServing)
	t.lock.TakeOver(old.Lease)
	t.state.Store(&servingState{name: client.LeaseNone, since: cmp.Or(old.Since, time.Now())})
}

// Check returns nil if processes of the volume may be started and changes written. Otherwise the error states the reason. It
// does not block. On a volume without locks, Check always returns nil.
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

// CheckRoot returns an error if root, the directory that is now at the path of the volume, is not the directory that this init has
// locked. Check then fails, too.
func (t *Lease) CheckRoot(root *fsutil.Dir) error { return t.lock.CheckRoot(root) }

// setWaiting sets the state to waiting, before the holder of the lock is known.
func (t *Lease) setWaiting() {
	t.setState(client.LeaseWaiting, fmt.Sprintf("cannot tell whether another hinit serves %q: %s has not answered yet", t.host.Config().Home, t.grantorName), nil)
}

// whyNotServing says in words why this init does not serve the volume.
func (t *Lease) whyNotServing(s *servingState) string {
	if s.holder == nil {
		return s.detail
	}
	return fmt.Sprintf("the lock of %q is held by %v", t.host.Config().Home, s.holder())
}

func waitsForLock() bool {
	v := os.Getenv(standbyVariable)
	return v == "" || !config.IsFalse(v)
}

// errLockHeld means that another process holds the lock, and that this init must not wait for it.
var errLockHeld = errors.New("another process has the lock")

// acquireResult is the result of acquire. The channel lost receives the reason when the lock is lost.
type acquireResult struct {
	lockLost <-chan error
	err      error
}

// acquire asks for the lock in a goroutine. got receives the result. busy receives a value if another process holds the lock.
// If wait is set, the goroutine then waits for the lock; otherwise it gives up with errLockHeld.
func (t *Lease) acquire(ctx context.Context, wait bool) (got chan acquireResult, busy <-chan struct{}) {
	ctx, cancel := context.WithCancelCause(ctx)
	result, waits := make(chan acquireResult, 1), make(chan struct{}, 1)
	guard.Go("asking for the lock of the volume", func() {
		lost, err := t.lock.Acquire(ctx, func(holder func() lease.Holder) {
			t.setState(client.LeaseWaiting, "", holder)
			pause.Wake(waits) // Acquire calls this function twice if it waits for the lease and then for the directory
			if !wait {
				cancel(errLockHeld)
			}
		})
		result <- acquireResult{lost, err}
	})
	return result, waits
}

// ClaimAtBoot decides during the boot whether this init serves the volume. While another process holds the lock, this init
// runs only its CMD and takes over later, unless HINIT_STANDBY forbids that. prepared means that the boot has prepared the volume
// already. Then ClaimAtBoot warns if the volume can't be locked.
//
// The context serving ends when the lock is lost, after all services of the volume have been killed. If the lock can't be
// lost, serving is ctx. If ok is false, the boot must stop.
func (t *Lease) ClaimAtBoot(ctx context.Context, b Boot, prepared bool) (serving context.Context, ok bool) {
	t.isServing.Store(true)
	if !t.host.RunPlan().HasProfiles() { // the container has no volume, or another container with the gateways owns it
		return ctx, true
	}
	t.setWaiting()
	got, busy := t.acquire(ctx, waitsForLock())
	begin, late := time.Now(), time.After(volumeTimeout)
	for {
		select {
		case a := <-got:
			if took := time.Since(begin); took > slowLockThreshold {
				t.steps.AddSteps(client.BootStep{Name: "lease", Seconds: took.Seconds()})
			}
			switch {
			case a.err == nil:
				return t.watchLock(ctx, a.lockLost, time.Now()), true
			case ctx.Err() != nil:
				return ctx, false
			case errors.Is(a.err, errLockHeld):
				t.isServing.Store(false)
				b.Ready()
				t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.whyNotServing(t.state.Load()), standbyVariable))
				return ctx, false
			}
			t.setState(client.LeaseNone, a.err.Error(), nil)
			if prepared && !errors.Is(a.err, fs.ErrNotExist) {
				t.host.Warn("nothing keeps another container from serving the same profiles: %v; see to it that only one uses this volume", a.err)
			}
			return ctx, true
		case <-busy:
			if !waitsForLock() {
				continue // acquire gives up now, and soon sends errLockHeld to got
			}
			t.isServing.Store(false)
			t.host.Say("%s; this container runs its CMD, serves nothing else, and takes over when the lock is free", t.whyNotServing(t.state.Load()))
			guard.Go("waiting for the lock of the volume", func() { t.reacquire(ctx, got) })
			return ctx, true
		case <-late:
			why := fmt.Sprintf("%s within %s", t.whyNotServing(t.state.Load()), volumeTimeout)
			if t.host.Config().Boot.Strict {
				b.Ready()
				t.host.Fatal(why + ", and boot.strict is set")
				return ctx, false
			}
			t.host.Say("%s; the boot continues when it does, and nothing but the CMD runs until then", why)
			b.StartCmdEarly()
		case <-ctx.Done():
			return ctx, false
		}
	}
}

// watchLock records since when this init has the lock, and watches the lock. It returns a context that ends when the lock is lost,
// after all services of the volume have been killed.
func (t *Lease) watchLock(ctx context.Context, lost <-chan error, since time.Time) context.Context {
	t.state.Store(&servingState{name: client.LeaseHeld, since: since})
	if lost == nil {
		return ctx
	}
	serving, end := context.WithCancelCause(ctx)
	guard.Go("watching the lock of the volume", func() {
		select {
		case why := <-lost:
			t.setState(client.LeaseWaiting, why.Error(), nil)
			t.stopServing(end, why)
			got, _ := t.acquire(ctx, waitsForLock())
			t.reacquire(ctx, got)
		case <-ctx.Done():
			end(context.Cause(ctx))
		}
	})
	return serving
}

// stopServing kills all services that need the lock after its loss, and ends the context serving.
func (t *Lease) stopServing(end context.CancelCauseFunc, why error) {
	t.isServing.Store(false)
	t.stopServices("the lock of the volume is lost")
	end(why)
	t.host.Say("%v; its gateways and services were killed, and nothing that is wanted of them was written", why)
	t.stopServices("the lock of the volume is lost") // services may have been registered since the first call
	t.host.DropProfiles()
}

// reacquire waits for the result of acquire on the channel got. If acquire got the lock, this init takes over the volume. If
// acquire failed, regain asks for the lock again.
func (t *Lease) reacquire(ctx context.Context, got <-chan acquireResult) {
	for {
		a := <-got
		switch {
		case a.err == nil:
			t.host.TakeOver(ctx, t.watchLock(ctx, a.lockLost, time.Now())) // watch first, so that a loss during the take-over is noticed
			return
		case ctx.Err() != nil:
			return
		case errors.Is(a.err, errLockHeld):
			t.host.Fatal(fmt.Sprintf("%s, and %s=0 is set", t.whyNotServing(t.state.Load()), standbyVariable))
			return
		}
		t.setState(client.LeaseWaiting, a.err.Error(), nil)
		if !pause.For(ctx, retryPause) {
			return
		}
		got, _ = t.acquire(ctx, waitsForLock())
	}
}

// Resume continues with the lock of the previous program after a re-execution. If that program had another kind of lock, Resume
// gets the lock anew. Resume kills the services that need the lock in two cases: another process holds the lock, or Resume has
// not got it within volumeTimeout. The returned context ends when the lock is lost.
func (t *Lease) Resume(ctx context.Context) context.Context {
	if !t.host.RunPlan().HasProfiles() {
		return ctx
	}
	serves, since := t.Serves(), t.state.Load().since
	if !serves {
		t.state.Store(&servingState{name: client.LeaseWaiting, since: since})
	}
	t.setWaiting()
	got, busy := t.acquire(ctx, waitsForLock())
	if !serves {
		guard.Go("waiting for the lock of the volume", func() { t.reacquire(ctx, got) })
		return ctx
	}
	select {
	case a := <-got:
		switch {
		case a.err == nil:
			return t.watchLock(ctx, a.lockLost, since)
		case ctx.Err() == nil && !errors.Is(a.err, errLockHeld):
			t.setState(client.LeaseNone, a.err.Error(), nil)
			return ctx
		}
		got <- a
	case <-busy:
	case <-time.After(volumeTimeout):
	}
	serving, end := context.WithCancelCause(ctx)
	guard.Go("ending what has no lock", func() {
		t.stopServing(end, fmt.Errorf("the image before this one had no lock: %s", t.whyNotServing(t.state.Load())))
		t.reacquire(ctx, got)
	})
	return serving
}

// stopServices kills everything that needs the lock, and makes the supervisor forget it.
func (t *Lease) stopServices(reason string) {
	var names []string
	for _, s := range t.loop.Snapshot().Services {
		if t.needsLock(s.Name, s.Kind) {
			names = append(names, s.Name)
		}
	}
	// Do fails only if the container ends.
	_ = t.loop.Do(context.Background(), supervisor.Evict{Names: names, Cause: supervisor.CauseLease, Reason: reason})
	for _, name := range names {
		if err := t.host.RemoveSlot(context.Background(), name); err != nil {
			t.host.Say("%v", err)
		}
	}
}

// needsLock reports whether a service may run only while this init holds the lock. That is so for gateways, services of
// hinit.yaml, and commands of clients, such as workers of the task board. The CMD and the services of the s6 scan directory
// may always run.
func (t *Lease) needsLock(name string, kind supervisor.Kind) bool {
	_, own := t.host.Config().Services[name]
	return kind == supervisor.KindGateway || kind == supervisor.KindRun || own && kind == supervisor.KindService && name != config.LeaseName
}

// CheckStart refuses to start a service that needs the lock while this init does not hold it, for
// [supervisor.Config].CheckStart.
func (t *Lease) CheckStart(name string, kind supervisor.Kind) error {
	if !t.needsLock(name, kind) {
		return nil
	}
	return t.Check()
}

// Status returns the state of the lock for the API.
func (t *Lease) Status() *client.Lease {
	s := t.state.Load()
	out := &client.Lease{State: s.name, Since: s.since, Standby: waitsForLock(), Detail: s.detail}
	if s.holder != nil {
		h := s.holder()
		out.Holder, out.Detail = &client.LeaseHolder{Host: h.Host, Since: h.Since, PID: h.PID, Command: h.Command}, t.whyNotServing(s)
	}
	return out
}
