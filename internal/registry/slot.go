package registry

import (
	"context"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/profiles"
)

// Follower is told of the slots that services need: their service directories of s6.
type Follower interface {
	// Enqueue makes the slot of a service soon, and does not block. Publish makes it and returns when the slot is complete. A slot that
	// is there stays as it is.
	Enqueue(s Slot)
	Publish(ctx context.Context, s Slot)
	// SetDown makes or removes the down file of a slot.
	SetDown(name string, down bool)
	// Foreign reports whether a service directory that hinit did not make has a name.
	Foreign(name string) bool
	// Withdraw removes a slot.
	Withdraw(ctx context.Context, name string) error
}

// Slot is what the slot of a service says: the command and its surroundings.
type Slot struct {
	Name string
	Down bool              // the service does not start with the container
	Argv []string          //
	Env  map[string]string // beside the container's
	Dir  string            // "" for any
	Cred *proc.Cred        // nil for whoever runs it

	Finish bool  // the service stays down after some exit codes, which are
	ParkOn []int //

	Log         string // directory of the log, "" for none
	LogSizeMB   int
	LogArchives int
}

// slot is what is known of the slot of a service.
type slot struct {
	made    bool              // it is there, or will be soon
	exports map[string]string // by its run, if a client has made it; never changed
}

// Follow tells a follower of all slots from now on. exports are its slots so far, each with what its run exports.
func (r *Registry) Follow(f Follower, exports map[string]map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.follower = f
	for name, vars := range exports {
		r.slots[name] = slot{true, vars}
	}
}

func (r *Registry) follow() Follower {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.follower
}

// slot returns what is known of the slot of a service.
func (r *Registry) slot(service string) slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[service]
}

// HasSlot reports whether a service has a slot, or will have one soon. Without a follower there are none.
func (r *Registry) HasSlot(service string) bool { return r.slot(service).made }

// Exports is what the slot of a service exports, nil for nothing. The map must not be changed.
func (r *Registry) Exports(service string) map[string]string { return r.slot(service).exports }

// make has a slot made. With now it waits for the slot.
func (r *Registry) make(ctx context.Context, s Slot, now bool) {
	f := r.follow()
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

// SlotGone notes that a client has removed the slot of a service.
func (r *Registry) SlotGone(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slots, service)
}

// Withdraw removes the slot of a service.
func (r *Registry) Withdraw(ctx context.Context, service string) error {
	r.SlotGone(service)
	if f := r.follow(); f != nil {
		return f.Withdraw(ctx, service)
	}
	return nil
}

// SetDown makes the down file of a gateway's slot say whether the gateway starts with the container. A down file that says so already is left
// alone, unless always is set: a client that removes a slot removes the down file first.
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

// gatewaySlot is the slot of a profile's gateway.
func (r *Registry) gatewaySlot(p profiles.Profile, down bool) Slot {
	cfg := r.o.Config()
	u := r.o.Units.Gateway(cfg, p, nil)
	return Slot{
		Name: u.Name, Down: down, Argv: u.Spec.Argv, Env: r.o.Units.GatewayVars(cfg, p, u.Spec.Dir), Dir: u.Spec.Dir,
		Cred: u.Spec.Cred, Finish: true, ParkOn: cfg.Restart.ParkOn,
		Log: cfg.Logs.Dir + "/" + p.Name, LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
}

// serviceSlot is the slot of a service of hinit.yaml.
func (r *Registry) serviceSlot(cfg *config.Config, s config.Service) Slot {
	out := Slot{
		Name: s.Name, Down: !s.WantedUp(), Argv: s.Command, Env: r.o.Units.ServiceVars(cfg, s), Dir: s.Cwd, Cred: r.o.Units.AgentCred(),
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
