package gateways

import (
	"maps"
	"slices"
	"time"

	"hinit/internal/gateways/orders"
	"hinit/profiles"
)

// gateway is what the Keeper remembers of one profile. The Keeper's mutex guards it.
type gateway struct {
	present    bool            // the profile is on the volume, as far as anybody has looked
	home       profiles.HomeID // the directory it lives in; zero when not known
	begun      time.Time       // when the last start began
	inputs     profiles.Hash   // of its configuration, as its gateway was started
	doubted    profiles.Hash   // inputs that the gateway may have been started without; they count as a change once
	trouble    string          // what was last said of its platforms
	downFile   downFile        // what the down file of its slot was last made to say
	prior      string          // why the boot has not started it
	wanted     bool            // its state file says that it is wanted up
	beside     bool            // an operator runs it beside the multiplexer
	exclusives []profiles.Exclusive
	unrecorded bool // an intent waits for another try to write it
}

// downFile is whether the slot of a gateway has a file "down".
type downFile int8

const (
	downUnknown downFile = iota
	downAbsent
	downPresent
)

// get returns the gateway of a profile, and makes one if there is none. It needs the mutex.
func (k *Keeper) get(profile string) *gateway {
	g := k.gateways[profile]
	if g == nil {
		g = &gateway{}
		k.gateways[profile] = g
	}
	return g
}

// Found takes note that a profile is on the volume.
func (k *Keeper) Found(profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.get(profile).present = true
}

// NotePrior remembers why the boot has not started a gateway that an operator may take for running.
func (k *Keeper) NotePrior(d profiles.Decision) {
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

// Exists reports whether a profile is on the volume, as far as is known. A profile that isn't can have a gateway all the same,
// whose slot a client has registered.
func (k *Keeper) Exists(profile string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.gateways[profile]
	return g != nil && g.present
}

// forget drops what is known of a profile that is gone.
func (k *Keeper) forget(profile string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.gateways, profile)
}

// NoteDown takes note of what the down file of a profile's slot says now, and reports whether that is a change.
func (k *Keeper) NoteDown(profile string, down bool) bool {
	now := downAbsent
	if down {
		now = downPresent
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.get(profile)
	was := g.downFile
	g.downFile = now
	return was != now
}

// followDown writes the down file when the intent has changed. Otherwise it writes nothing: a client that removes a slot removes
// its down file first.
func (k *Keeper) followDown(profile string, down bool) {
	if k.NoteDown(profile, down) {
		k.host.SetDown(profile, down)
	}
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
	if home, err := k.store.HomeID(profile); err == nil && profile != profiles.Default {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.get(profile).home = home
	}
}

// Handover is what a Keeper hands over to that of the next program of PID 1.
type Handover struct {
	Inputs  map[string]profiles.Hash // by profile
	Present map[string]bool
	Marked  map[string]bool // by profile whose slot has a known down file: whether it is there
	Beside  map[string]bool // profiles whose gateways an operator runs beside the multiplexer
	Wanted  map[string]bool // profiles whose state files want their gateways up
	Orders  []orders.Unfinished

	Topology    *profiles.Topology // as the default profile's gateway was started; nil of an image that did not tell
	TopologyRun uint64             // the run of that gateway
}

// HandOver returns what the Keeper of the next program needs.
func (k *Keeper) HandOver() Handover {
	s := Handover{
		Inputs: make(map[string]profiles.Hash), Present: make(map[string]bool), Marked: make(map[string]bool), Orders: k.orders.Unfinished(),
		Beside: make(map[string]bool), Wanted: make(map[string]bool),
	}
	now := k.serving.Load()
	s.Topology, s.TopologyRun = &now.Topology, now.noted
	k.mu.Lock()
	defer k.mu.Unlock()
	for profile, g := range k.gateways {
		if g.inputs != "" {
			s.Inputs[profile] = g.inputs
		}
		if g.present {
			s.Present[profile] = true
		}
		if g.downFile != downUnknown {
			s.Marked[profile] = g.downFile == downPresent
		}
		if g.beside {
			s.Beside[profile] = true
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
	for profile, present := range s.Present {
		k.get(profile).present = present
	}
	for profile, down := range s.Marked {
		k.NoteDown(profile, down)
	}
	for profile, beside := range s.Beside {
		k.get(profile).beside = beside // the host is told by the container
	}
	for profile, wanted := range s.Wanted {
		k.get(profile).wanted = wanted
	}
	if k.told = s.Topology != nil; k.told {
		k.serving.Store(&serving{Topology: *s.Topology, noted: s.TopologyRun})
	}
	k.inherited = s.Orders
}

// present lists the profiles that are on the volume as far as anybody has looked, sorted by name.
func (k *Keeper) presentProfiles() (list []profiles.Profile) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(k.gateways)) {
		if p, err := k.store.Profile(name); err == nil && k.gateways[name].present { // it only looks at the name
			list = append(list, p)
		}
	}
	return list
}
