package registry

import (
	"context"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/profiles"
)

// Follower maintains the slots of services, which are their s6 service directories.
type Follower interface {
	// Enqueue queues the creation of a service's slot, and does not block. Publish creates the slot, and returns when the slot is
	// complete. Both keep an existing slot.
	Enqueue(s Slot)
	Publish(ctx context.Context, s Slot)
	// SetDown creates or removes the down file of an s6 service directory.
	SetDown(name string, down bool)
	// Foreign reports whether the name belongs to a service directory that hinit did not make.
	Foreign(name string) bool
	// Withdraw removes an s6 service directory.
	Withdraw(ctx context.Context, name string) error
}

// Slot describes the s6 service directory of a service: the command, its environment and its log.
type Slot struct {
	Name string
	Down bool              // whether the slot has a down file, which keeps the service down when the container starts
	Argv []string          // the command and its arguments
	Env  map[string]string // variables in addition to the container's variables
	Dir  string            // working directory; "" if the command may run in any directory
	Cred *proc.Cred        // user of the command; nil for the user who runs the slot's run script

	Finish bool  // the slot has a finish script, which keeps the service down after the exit codes in ParkOn
	ParkOn []int // exit codes after which the finish script keeps the service down

	Log         string // directory of the log, or "" for no log
	LogSizeMB   int
	LogArchives int
}

// slot is the Registry's record of a service's s6 service directory (slot).
type slot struct {
	made    bool              // the slot exists, or will soon
	exports map[string]string // variables that its run script exports, if a client made it; never changed
}

// Follow makes f maintain the s6 service directories (slots) from now on. exports lists the existing slots, each with the
// variables that its run script exports.
func (r *Registry) Follow(f Follower, exports map[string]map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follower = f
	for name, vars := range exports {
		r.slots[name] = slot{true, vars}
	}
}

func (r *Registry) currentFollower() Follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.follower
}

// slot returns the record of a service's s6 service directory.
func (r *Registry) slot(service string) slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[service]
}

// HasSlot reports whether a service has an s6 service directory (slot), or will have one soon. No service has a slot before
// [Registry.Follow] has set a [Follower].
func (r *Registry) HasSlot(service string) bool { return r.slot(service).made }

// Exports returns the variables that the run script in a service's s6 service directory exports, or nil if it exports none.
// The map must not be changed.
func (r *Registry) Exports(service string) map[string]string { return r.slot(service).exports }

// makeSlot makes the follower create an s6 service directory (slot). If now is true, it waits until the slot is complete.
func (r *Registry) makeSlot(ctx context.Context, s Slot, now bool) {
	f := r.currentFollower()
	if f == nil {
		return
	}
	r.mu.Lock()
	r.slots[s.Name] = slot{true, r.slots[s.Name].exports}
	r.mu.Unlock()
	if now {
		f.Publish(ctx, s)
	} else {
		f.Enqueue(s)
	}
}

// SlotGone records that a client has removed the s6 service directory (slot) of a service.
func (r *Registry) SlotGone(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slots, service)
}

// Withdraw removes the s6 service directory (slot) of a service.
func (r *Registry) Withdraw(ctx context.Context, service string) error {
	r.SlotGone(service)
	if f := r.currentFollower(); f != nil {
		return f.Withdraw(ctx, service)
	}
	return nil
}

// SetDown sets whether the s6 service directory of a gateway has a down file, which keeps the gateway down when the
// container starts. If the file is known to be right, SetDown does nothing, unless always is true. Set always if a client
// may be removing the directory, because the client removes the down file first.
func (r *Registry) SetDown(profile string, down, always bool) {
	r.mu.Lock()
	was, known := r.down[profile]
	r.down[profile] = down
	f := r.follower
	r.mu.Unlock()
	if f != nil && (always || !known || was != down) {
		f.SetDown(profiles.SlotName(profile), down)
	}
}

// gatewaySlot describes the s6 service directory (slot) of a profile's gateway.
func (r *Registry) gatewaySlot(p profiles.Profile, down bool) Slot {
	cfg := r.o.Config()
	u := r.o.Units.Gateway(cfg, p, nil)
	return Slot{
		Name: u.Name, Down: down, Argv: u.Spec.Argv, Env: r.o.Units.GatewayVars(cfg, p, u.Spec.Dir), Dir: u.Spec.Dir,
		Cred: u.Spec.Cred, Finish: true, ParkOn: cfg.Restart.ParkOn,
		Log: cfg.Logs.Dir + "/" + p.Name, LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
}

// serviceSlot describes the s6 service directory (slot) of a service of hinit.yaml.
func (r *Registry) serviceSlot(cfg *config.Config, s config.Service) Slot {
	out := Slot{
		Name: s.Name, Down: !s.StartsAtBoot(), Argv: s.Command, Env: r.o.Units.ServiceVars(cfg, s), Dir: s.Cwd, Cred: r.o.Units.AgentCred(),
		LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
	if u, err := r.o.Units.Service(cfg, s); err == nil {
		if out.Dir = u.Spec.Dir; u.Spec.Cred == nil {
			out.Cred = nil
		}
	}
	if s.Log {
		out.Log = cfg.Logs.Dir + "/" + s.Name
	}
	return out
}
