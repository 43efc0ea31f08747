package registry

import (
	"context"

	"hinit/internal/config"
	"hinit/internal/proc"
	"hinit/internal/s6/formats"
	"hinit/profiles"
	"hinit/supervisor"
)

// SlotMaker makes and removes the slots (s6 service directories) of services. Package personality implements it.
type SlotMaker interface {
	// Enqueue makes a slot later, and does not block. Publish makes a slot and returns when it is complete. Both keep an existing
	// slot.
	Enqueue(s Slot)
	Publish(ctx context.Context, s Slot)
	// SetDown makes or removes the down file of a slot.
	SetDown(name string, down bool)
	// IsForeign reports whether the name belongs to a service directory that hinit did not make.
	IsForeign(name string) bool
	// RemoveSlot removes a slot. A missing slot is no error.
	RemoveSlot(ctx context.Context, name string) error
}

// Slot describes the s6 service directory of a service.
type Slot struct {
	Name string
	Down bool // there is a down file, which keeps the service down at the start of the container
	Argv []string
	Env  map[string]string // variables that the command gets besides the container's environment
	Dir  string            // working directory; "" for any directory
	Cred *proc.Cred        // user of the command; nil for the user who runs the run script

	HasFinish     bool  // there is a finish script, which keeps the service down after an exit code of ParkExitCodes
	ParkExitCodes []int // exit codes for the finish script

	Log         string // directory of the log; "" for none
	LogSizeMB   int
	LogArchives int
}

// slot is the Registry's record of the s6 service directory (slot) of a service.
type slot struct {
	exists  bool              // the slot exists, or is about to be made
	exports map[string]string // exports of the slot's run script, if a client made the slot; the map is never changed
}

// SetSlotMaker sets the SlotMaker. exports lists the existing slots, each with the variables that its run script exports.
func (r *Registry) SetSlotMaker(f SlotMaker, exports map[string]map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.slotMaker = f
	for name, vars := range exports {
		r.slots[name] = slot{true, vars}
	}
}

func (r *Registry) currentSlotMaker() SlotMaker {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slotMaker
}

// slot returns the record of a service's s6 service directory.
func (r *Registry) slot(service string) slot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.slots[service]
}

// HasSlot reports whether a service has an s6 service directory (slot), or soon will. Without a [SlotMaker] no service has one.
func (r *Registry) HasSlot(service string) bool { return r.slot(service).exists }

// Exports returns the variables that the run script of a service's s6 directory exports, or nil. Do not modify the map.
func (r *Registry) Exports(service string) map[string]string { return r.slot(service).exports }

// makeSlot makes the SlotMaker create a slot, and with wait blocks until the slot is complete. A service whose name is too long
// for s6 gets no slot, because the SlotMaker would fail and try again for ever.
func (r *Registry) makeSlot(ctx context.Context, s Slot, wait bool) {
	f := r.currentSlotMaker()
	if f == nil || len(s.Name) > formats.MaxName {
		return
	}
	r.mu.Lock()
	r.slots[s.Name] = slot{true, r.slots[s.Name].exports}
	r.mu.Unlock()
	if wait {
		f.Publish(ctx, s)
	} else {
		f.Enqueue(s)
	}
}

// RecordSlotRemoved records that a client has removed the s6 service directory (slot) of a service.
func (r *Registry) RecordSlotRemoved(service string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.slots, service)
}

// RemoveSlot removes the s6 service directory (slot) of a service.
func (r *Registry) RemoveSlot(ctx context.Context, service string) error {
	r.RecordSlotRemoved(service)
	if f := r.currentSlotMaker(); f != nil {
		return f.RemoveSlot(ctx, service)
	}
	return nil
}

// SetDown makes or removes the down file of a gateway's slot, which keeps the gateway down at the start of the container. It
// does nothing if the Registry knows that the file is right, unless always is set: a client that is removing the slot removes
// the down file first.
func (r *Registry) SetDown(profile string, down, always bool) {
	r.mu.Lock()
	was, known := r.downFiles[profile]
	r.downFiles[profile] = down
	f := r.slotMaker
	r.mu.Unlock()
	if f != nil && (always || !known || was != down) {
		f.SetDown(profiles.SlotName(profile), down)
	}
}

// gatewaySlot describes the s6 service directory (slot) of a profile's gateway with the unit u.
func (r *Registry) gatewaySlot(p profiles.Profile, u supervisor.Unit, down bool) Slot {
	cfg := r.options.Config()
	return Slot{
		Name: u.Name, Down: down, Argv: u.Spec.Argv, Env: r.options.Units.GatewayVars(cfg, p, u.Spec.Dir), Dir: u.Spec.Dir,
		Cred: u.Spec.Cred, HasFinish: true, ParkExitCodes: cfg.Restart.ParkCodes,
		Log: cfg.Logs.Dir + "/" + p.Name, LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
}

// serviceSlot describes the slot of a service of hinit.yaml.
func (r *Registry) serviceSlot(cfg *config.Config, s config.Service) Slot {
	out := Slot{
		Name: s.Name, Down: !s.StartsAtBoot(), Argv: s.Command, Env: r.options.Units.ServiceVars(cfg, s), Dir: s.Cwd, Cred: r.options.Units.AgentCred(),
		LogSizeMB: cfg.Logs.MaxSizeMB, LogArchives: cfg.Logs.Archives,
	}
	if u, err := r.options.Units.Service(cfg, s); err == nil {
		out.Dir, out.Cred = u.Spec.Dir, u.Spec.Cred
	}
	if s.HasLogFile {
		out.Log = cfg.Logs.Dir + "/" + s.Name
	}
	return out
}
