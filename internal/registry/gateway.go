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

// Gateway says how to register the gateway of a profile.
type Gateway struct {
	Profile      profiles.Profile
	Start        bool      // whether to start the gateway
	Down         bool      // the s6 service directory (slot) of the gateway gets a down file, which keeps the gateway down at the start of the container
	LastUsed     time.Time // last use of the profile; zero if unknown
	WaitsForSlot bool      // the returned function waits until the slot exists

	// SlotMadeByClient means that a client has made the s6 service directory (slot). Exports are the variables that the slot's
	// run script exports.
	SlotMadeByClient bool
	Exports          map[string]string
}

// RegisterGateway registers the gateway of a profile. A registered gateway keeps its desired state, unless Start is set. Call
// the returned function, which waits for the supervisor.
func (r *Registry) RegisterGateway(ctx context.Context, g Gateway) (answer func() error) {
	name := profiles.SlotName(g.Profile.Name)
	known := r.isKnown(name)
	r.mu.Lock()
	r.downFiles[g.Profile.Name] = g.Down
	if g.SlotMadeByClient {
		r.slots[name] = slot{true, g.Exports}
	}
	exports := r.slots[name].exports
	r.mu.Unlock()
	u := r.options.Units.Gateway(r.options.Config(), g.Profile, exports)
	u.Policy.LastUsed = g.LastUsed
	var s Slot
	if !g.SlotMadeByClient { // a client that sees the service in the status must also find its slot
		s = r.gatewaySlot(g.Profile, u, g.Down)
		r.makeSlot(ctx, s, false)
	}
	want := supervisor.WantDown
	if g.Start {
		want = supervisor.WantUp
	}
	registered := r.registerGateway(ctx, g.Profile, u, exports, want)
	return func() error {
		err := registered()
		switch {
		case err != nil && g.SlotMadeByClient:
			r.RecordSlotRemoved(name)
		case err == nil && known && g.Start:
			err = r.Do(ctx, supervisor.Start{Name: name})
		}
		if g.WaitsForSlot {
			r.makeSlot(ctx, s, true)
		}
		return err
	}
}

// registerGateway registers the gateway of a profile as the unit u. exports are the variables from the gateway's s6 service
// directory (slot), which u already contains.
func (r *Registry) registerGateway(ctx context.Context, p profiles.Profile, u supervisor.Unit, exports map[string]string, want supervisor.Want) (answer func() error) {
	registered := r.register(ctx, u, want)
	return func() error {
		err := registered()
		// A client may have replaced the slot during the registration, so register the gateway again with the new variables.
		for err == nil {
			now := r.Exports(u.Name)
			if maps.Equal(now, exports) {
				break
			}
			exports = now
			err = r.Register(ctx, r.options.Units.Gateway(r.options.Config(), p, exports), supervisor.WantDown)
		}
		return err
	}
}

// RedefineGateway makes the definition of a profile's gateway again, from hinit.yaml and the gateway's s6 service directory. The
// gateway uses it from its next start on.
func (r *Registry) RedefineGateway(ctx context.Context, profile string) error {
	p, err := r.options.Store.Profile(profile)
	if err != nil {
		return err
	}
	exports := r.Exports(profiles.SlotName(profile))
	return r.registerGateway(ctx, p, r.options.Units.Gateway(r.options.Config(), p, exports), exports, supervisor.WantDown)()
}

// redefineGateways calls RedefineGateway for every gateway.
func (r *Registry) redefineGateways(ctx context.Context) error {
	var problems []error
	for _, s := range r.Snapshot().Services {
		if s.Kind == supervisor.KindGateway {
			problems = append(problems, r.RedefineGateway(ctx, s.Profile))
		}
	}
	return errors.Join(problems...)
}

// StoreTopology sets the topology (which gateway serves which profiles) from the volume. A gateway gets it when it is
// redefined.
func (r *Registry) StoreTopology(t profiles.Topology) { r.options.Units.SetTopology(t) }

// SetTopology sets the topology that an operator has chosen. Every gateway gets it at its next start.
func (r *Registry) SetTopology(ctx context.Context, t profiles.Topology) error {
	r.ChangeLock.Lock()
	defer r.ChangeLock.Unlock()
	r.options.Units.SetTopology(t)
	return r.redefineGateways(ctx)
}

// SetOwnGatewayAllowed says whether a profile's own gateway may run although another gateway serves the profile. The gateway
// gets the value at its next start.
func (r *Registry) SetOwnGatewayAllowed(ctx context.Context, profile string, on bool) {
	if r.options.Units.MayRunOwnGateway(profile) == on {
		return
	}
	r.options.Units.SetOwnGatewayAllowed(profile, on)
	if err := r.RedefineGateway(ctx, profile); err != nil {
		r.options.Logger.Say("%v", err)
	}
}

// MayRunOwnGateway returns what SetOwnGatewayAllowed has set.
func (r *Registry) MayRunOwnGateway(profile string) bool {
	return r.options.Units.MayRunOwnGateway(profile)
}

// RestoreSlot makes the s6 service directory (slot) of a service again if a client has removed it.
func (r *Registry) RestoreSlot(ctx context.Context, service string) {
	if r.currentSlotMaker() == nil || r.HasSlot(service) {
		return
	}
	cfg := r.options.Config()
	if s, own := cfg.Services[service]; own {
		r.publishSlot(ctx, cfg, s)
		return
	}
	profile, ok := profiles.SlotProfile(service)
	if !ok {
		return
	}
	p, err := r.options.Store.Profile(profile)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.downFiles[profile] = true
	r.mu.Unlock()
	r.makeSlot(ctx, r.gatewaySlot(p, r.options.Units.Gateway(cfg, p, nil), true), true)
	if err := r.RedefineGateway(ctx, profile); err != nil && !errors.Is(err, supervisor.ErrStopping) { // drop the exports of the removed slot
		r.options.Logger.Say("%v", err)
	}
}

// AddProfile records that the volume has a profile of this name.
func (r *Registry) AddProfile(profile string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.knownProfiles[profile] = true
}

// ProfileExists reports whether the volume is known to have a profile. A registered gateway may have no profile, because a
// client can make an s6 service directory of any name.
func (r *Registry) ProfileExists(profile string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.knownProfiles[profile]
}

// KnownProfiles lists the known profiles, sorted by name.
func (r *Registry) KnownProfiles() (list []profiles.Profile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(r.knownProfiles)) {
		if p, err := r.options.Store.Profile(name); err == nil { // Profile checks only the name, and reads no disk
			list = append(list, p)
		}
	}
	return list
}

// ForgetProfile drops the record of a removed profile.
func (r *Registry) ForgetProfile(profile string) {
	r.options.Units.SetOwnGatewayAllowed(profile, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.knownProfiles, profile)
	delete(r.downFiles, profile)
}

// DropProfiles drops all profiles, because another init now serves them. The s6 service directories stay.
func (r *Registry) DropProfiles() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.knownProfiles)
	clear(r.downFiles)
}

// Handover is the state that a Registry passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Present     map[string]bool // profiles that exist
	Marked      map[string]bool // whether the s6 service directory of a profile has a down file; no entry if unknown
	OwnGateways map[string]bool `reexec:"Beside"` // profiles whose own gateway may run although another gateway serves them
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (r *Registry) HandOver() Handover {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Handover{Present: maps.Clone(r.knownProfiles), Marked: maps.Clone(r.downFiles), OwnGateways: r.options.Units.ProfilesWithOwnGateway()}
}

// TakeOver restores the state that [Registry.HandOver] returned. Call it before any other method.
func (r *Registry) TakeOver(h Handover) {
	maps.Copy(r.knownProfiles, h.Present)
	maps.Copy(r.downFiles, h.Marked)
	for profile, on := range h.OwnGateways {
		r.options.Units.SetOwnGatewayAllowed(profile, on)
	}
	r.needsMet[NeedBoot].Store(true) // a re-execution is possible only after the boot
	r.needsMet[NeedProfiles].Store(true)
}
