package gateways

import (
	"slices"
	"time"

	"hinit/internal/control/show"
	"hinit/internal/gateways/orders"
	"hinit/profiles"
	"hinit/supervisor"
)

// gateway is what the Manager knows about one profile. The Manager's mutex guards it.
type gateway struct {
	home       profiles.HomeID    // home directory of the profile, which a renaming does not change; zero if unknown
	startBegan time.Time          // when the last start of the gateway began
	inputs     profiles.InputHash // hash of the inputs with which the gateway was started
	// hash of inputs that may have changed just after the start. Such inputs restart the gateway only once.
	doubtfulInputs   profiles.InputHash
	platformProblem  string // last problem with its chat platforms that the gateway reported
	notStartedReason string // why the boot did not start the gateway, for the status
	wanted           bool   // the state file says that the gateway should run
	exclusiveValues  []profiles.ExclusiveValue
	unrecorded       bool // the intent could not be written to the volume; recordLater tries again
}

// records is what the Manager knows about all profiles.
type records struct {
	byProfile     map[string]*gateway
	removedByHome map[profiles.HomeID]removedProfile   // removed profiles by their home directory, to recognize a renamed one
	users         map[profiles.ExclusiveValue][]string // running gateways by exclusive value (such as a token), for the snapshot usersOf
	usersOf       *supervisor.Snapshot                 // snapshot from which users was made; nil if the values have changed since
}

// gatewayOf returns the record of a profile, and makes one if there is none. The caller holds the mutex.
func (m *Manager) gatewayOf(profile string) *gateway {
	g := m.gateways.byProfile[profile]
	if g == nil {
		g = &gateway{}
		m.gateways.byProfile[profile] = g
	}
	return g
}

// recordNotStarted stores why the boot did not start a gateway that an operator may expect to run.
func (m *Manager) recordNotStarted(d profiles.Decision) {
	if d.Start || slices.Contains([]string{profiles.Stopped, profiles.Running, profiles.State{}.PriorState()}, d.PriorState) {
		return
	}
	text := "it was " + d.PriorState + " when the container ended"
	if d.PriorExit == profiles.ExitUnclean {
		text += ", without a clean exit"
	}
	text += ", so the boot has not started it: hinit start " + d.Profile.Name
	m.updateRecord(d.Profile.Name, func(g *gateway) { g.notStartedReason = text })
}

// Warnings returns the warnings about profiles and their directories that hold now, sorted. Warnings about one agent's profile never
// displace warnings about another agent's.
func (m *Manager) Warnings() (list []string) {
	if w := m.watch(); w != nil {
		for _, warning := range w.Warnings() {
			list = append(list, supervisor.ShortenText(show.Line(warning.Message)))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// forget drops everything about a profile that was removed.
func (m *Manager) forget(profile string) {
	m.Registry.Forget(profile)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.gateways.byProfile, profile)
}

// record returns a copy of the record of a profile. The copy is empty if there is no record.
func (m *Manager) record(profile string) gateway {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gateways.byProfile[profile]; g != nil {
		return *g
	}
	return gateway{}
}

// updateRecord lets set change the record of a profile, and makes one if there is none.
func (m *Manager) updateRecord(profile string, set func(g *gateway)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set(m.gatewayOf(profile))
}

// storeHome stores which directory is the home of a profile. It reads the disk.
func (m *Manager) storeHome(profile string) {
	if home, err := m.Store.HomeID(profile); err == nil && profile != profiles.Default {
		m.updateRecord(profile, func(g *gateway) { g.home = home })
	}
}

// Handover is the state that a Manager passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Inputs map[string]profiles.InputHash // hashes of the inputs of running gateways, by profile; "" if a hash is unknown
	Wanted map[string]bool               // whether the state file of each profile says that its gateway should run
	Orders []orders.Unfinished           // orders that the next program must carry out

	Topology    profiles.Topology // topology with which the default profile's gateway was started
	TopologyRun uint64            // run of the default profile's gateway to which Topology belongs
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (m *Manager) HandOver() Handover {
	s := Handover{Inputs: make(map[string]profiles.InputHash), Wanted: make(map[string]bool), Orders: m.orders.Unfinished()}
	now := m.serving.Load()
	s.Topology, s.TopologyRun = now.Topology, now.topologyRun
	m.mu.Lock()
	defer m.mu.Unlock()
	for profile, g := range m.gateways.byProfile {
		s.Inputs[profile], s.Wanted[profile] = g.inputs, g.wanted
	}
	return s
}

// TakeOver restores the state that [Manager.HandOver] returned. Call it before any other method.
func (m *Manager) TakeOver(s Handover) {
	for profile, hash := range s.Inputs {
		m.gatewayOf(profile).inputs = hash
	}
	for profile, wanted := range s.Wanted {
		m.gatewayOf(profile).wanted = wanted
	}
	m.serving.Store(&servedProfiles{Topology: s.Topology, topologyRun: s.TopologyRun})
	m.inherited = s
}
