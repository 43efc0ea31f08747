package registry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"hinit/profiles"
	"hinit/supervisor"
)

// Gateway is how the gateway of a profile is made known.
type Gateway struct {
	Profile profiles.Profile
	Start   bool      // it is started
	Down    bool      // its slot has a down file
	Used    time.Time // when the profile was used last; zero when not known
	Now     bool      // its slot is complete when the answer comes

	// Slotted says that a client has made the slot, which exports these variables.
	Slotted bool
	Exports map[string]string
}

// Gateway makes the gateway of a profile known, at the boot and later. A known one keeps its want, unless it is to be started. The caller
// must call answer, which waits for the supervisor.
func (r *Registry) Gateway(ctx context.Context, g Gateway) (answer func() error) {
	name := profiles.SlotName(g.Profile.Name)
	known := r.knows(name)
	var s Slot
	r.mu.Lock()
	r.down[g.Profile.Name] = g.Down
	if g.Slotted {
		r.slots[name] = slot{true, g.Exports}
	}
	r.mu.Unlock()
	if !g.Slotted { // before the service is known: a client that sees the service in the status finds the slot
		s = r.gatewaySlot(g.Profile, g.Down)
		r.make(ctx, s, false)
	}
	want := supervisor.WantDown
	if g.Start {
		want = supervisor.WantUp
	}
	registered := r.gateway(ctx, g.Profile, want, g.Used)
	return func() error {
		err := registered()
		switch {
		case err != nil && g.Slotted:
			r.SlotGone(name)
		case err == nil && known && g.Start:
			err = r.Do(ctx, supervisor.Start{Name: name})
		}
		if g.Now {
			r.make(ctx, s, true)
		}
		return err
	}
}

// gateway registers the gateway of a profile with what its slot exports.
func (r *Registry) gateway(ctx context.Context, p profiles.Profile, want supervisor.Want, used time.Time) (answer func() error) {
	name := profiles.SlotName(p.Name)
	exports := r.Exports(name)
	u := r.o.Units.Gateway(r.o.Config(), p, exports)
	u.Policy.Used = used
	registered := r.register(ctx, u, want)
	return func() error {
		err := registered()
		// A client may have made another slot meanwhile, and this registration came last.
		for now := r.Exports(name); err == nil && !maps.Equal(now, exports); now = r.Exports(name) {
			exports = now
			err = r.Register(ctx, r.o.Units.Gateway(r.o.Config(), p, exports), supervisor.WantDown)
		}
		return err
	}
}

// Redefine makes the gateway of a profile start as the configuration and its slot say, from its next start on.
func (r *Registry) Redefine(ctx context.Context, profile string) error {
	p, err := r.o.Store.Profile(profile)
	if err != nil {
		return err
	}
	return r.gateway(ctx, p, supervisor.WantDown, time.Time{})()
}

// redefineAll is Redefine for every gateway.
func (r *Registry) redefineAll(ctx context.Context) error {
	var problems []error
	for _, s := range r.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			problems = append(problems, r.Redefine(ctx, s.Profile))
		}
	}
	return errors.Join(problems...)
}

// ReadTopology makes gateways, from their next start on, learn what an operator had asked for when the profiles were read.
func (r *Registry) ReadTopology(t profiles.Topology) { r.o.Units.SetTopology(t) }

// SetTopology makes every gateway, from its next start on, learn what an operator has asked for.
func (r *Registry) SetTopology(ctx context.Context, t profiles.Topology) error {
	r.Turn.Lock()
	defer r.Turn.Unlock()
	r.o.Units.SetTopology(t)
	return r.redefineAll(ctx)
}

// SetBeside makes the gateway of a profile, from its next start on, run beside the one that serves its profile, or not.
func (r *Registry) SetBeside(ctx context.Context, profile string, on bool) {
	if r.o.Units.Beside(profile) == on {
		return
	}
	r.o.Units.SetBeside(profile, on)
	if err := r.Redefine(ctx, profile); err != nil {
		r.o.Logger.Say("%v", err)
	}
}

// Beside reports whether the gateway of a profile runs beside the one that serves its profile.
func (r *Registry) Beside(profile string) bool { return r.o.Units.Beside(profile) }

// Restore brings the slot of a service back that a client has removed.
func (r *Registry) Restore(ctx context.Context, service string) {
	if r.follow() == nil || r.HasSlot(service) {
		return
	}
	cfg := r.o.Config()
	if s, own := cfg.Services[service]; own {
		r.publish(ctx, cfg, s)
		return
	}
	profile, ok := profiles.SlotProfile(service)
	if !ok {
		return
	}
	p, err := r.o.Store.Profile(profile)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.down[profile] = true
	r.mu.Unlock()
	r.make(ctx, r.gatewaySlot(p, true), true)
	if err := r.Redefine(ctx, profile); err != nil && !errors.Is(err, supervisor.ErrStopping) { // without the exports of the removed slot
		r.o.Logger.Say("%v", err)
	}
}

// Found notes that a profile is on the volume.
func (r *Registry) Found(profile string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.present[profile] = true
}

// Exists reports whether a profile is on the volume, as far as is known. A profile that isn't can have a gateway all the same,
// whose slot a client has made.
func (r *Registry) Exists(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present[profile]
}

// Present lists the profiles that exist, sorted by name.
func (r *Registry) Present() (list []profiles.Profile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.present)) {
		if p, err := r.o.Store.Profile(name); err == nil { // it only looks at the name
			list = append(list, p)
		}
	}
	return list
}

// Forget drops what is known of a profile that is gone.
func (r *Registry) Forget(profile string) {
	r.o.Units.SetBeside(profile, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.present, profile)
	delete(r.down, profile)
}

// Reset forgets all profiles, because another init has them now. It leaves the slots of services alone.
func (r *Registry) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.present)
	clear(r.down)
}

// Handover is the state that a Registry hands over to the Registry of PID 1's next image.
type Handover struct {
	Present map[string]bool // by profile
	Marked  map[string]bool // by profile whose slot has a known down file: whether it is there
	Beside  map[string]bool // profiles whose gateways an operator runs beside the multiplexer
}

// HandOver returns what the Registry of the next program needs.
func (r *Registry) HandOver() Handover {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Handover{Present: maps.Clone(r.present), Marked: maps.Clone(r.down), Beside: r.o.Units.AllBeside()}
}

// TakeOver takes over what [Registry.HandOver] returned. It must be called before anything else.
func (r *Registry) TakeOver(h Handover) {
	maps.Copy(r.present, h.Present)
	maps.Copy(r.down, h.Marked)
	for profile, on := range h.Beside {
		r.o.Units.SetBeside(profile, on)
	}
	r.met.boot.Store(true) // the boot is over
	r.met.profiles.Store(true)
}
