package gateways

import (
	"slices"
	"time"

	"hinit/internal/gateways/orders"
	"hinit/profiles"
)

// gateway is what the Keeper remembers of one profile. The Keeper's mutex guards it.
type gateway struct {
	home       profiles.HomeID // the directory it lives in; zero when not known
	begun      time.Time       // when the last start began
	inputs     profiles.Hash   // of its configuration, as its gateway was started
	doubted    profiles.Hash   // inputs that the gateway may have been started without; they count as a change once
	trouble    string          // what was last said of its platforms
	prior      string          // why the boot has not started it
	wanted     bool            // its state file says that it is wanted up
	exclusives []profiles.Exclusive
	unrecorded bool // an intent waits for another try to write it
}

// get returns the gateway of a profile, and makes one if there is none. It needs the mutex.
func (k *Keeper) get(profile string) *gateway {
	g := k.gateways[profile]
	if g == nil {
		g = &gateway{}
		k.gateways[profile] = g
	}
	return g
}

// notePrior remembers why the boot has not started a gateway that an operator may take for running.
func (k *Keeper) notePrior(d profiles.Decision) {
	if d.Start || slices.Contains([]string{profiles.Stopped, profiles.Running, profiles.State{}.Prior()}, d.PriorState) {
		return
	}
	text := "it was " + d.PriorState + " when the container ended"
	if d.PriorExit == profiles.ExitUnclean {
		text += ", without a clean exit"
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.get(d.Profile.Name).prior = text + ", so the boot has not started it: hinit start " + d.Profile.Name
}

// forget drops what is known of a profile that is gone.
func (k *Keeper) forget(profile string) {
	k.Registry.Forget(profile)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.gateways, profile)
}

func (k *Keeper) inputsOf(profile string) profiles.Hash {
	k.mu.Lock()
	defer k.mu.Unlock()
	if g := k.gateways[profile]; g != nil {
		return g.inputs
	}
	return ""
}

// noteHome remembers which directory a profile lives in. It reads the disk.
func (k *Keeper) noteHome(profile string) {
	if home, err := k.Store.HomeID(profile); err == nil && profile != profiles.Default {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.get(profile).home = home
	}
}

// Handover is the state that a Keeper hands over to the Keeper of PID 1's next image.
type Handover struct {
	Inputs map[string]profiles.Hash // by profile
	Wanted map[string]bool          // profiles whose state files want their gateways up
	Orders []orders.Unfinished

	Topology    *profiles.Topology // as the default profile's gateway was started; nil of an image that did not tell
	TopologyRun uint64             // the run of that gateway
}

// HandOver returns what the Keeper of the next program needs.
func (k *Keeper) HandOver() Handover {
	s := Handover{
		Inputs: make(map[string]profiles.Hash), Wanted: make(map[string]bool), Orders: k.orders.Unfinished(),
	}
	now := k.serving.Load()
	s.Topology, s.TopologyRun = &now.Topology, now.noted
	k.mu.Lock()
	defer k.mu.Unlock()
	for profile, g := range k.gateways {
		if g.inputs != "" {
			s.Inputs[profile] = g.inputs
		}
		if g.wanted {
			s.Wanted[profile] = true
		}
	}
	return s
}

// TakeOver takes over what [Keeper.HandOver] returned. It must be called before anything else.
func (k *Keeper) TakeOver(s Handover) {
	for profile, hash := range s.Inputs {
		k.get(profile).inputs = hash
	}
	for profile, wanted := range s.Wanted {
		k.get(profile).wanted = wanted
	}
	if s.Topology != nil {
		k.serving.Store(&serving{Topology: *s.Topology, noted: s.TopologyRun})
	}
	k.inherited = s
}
