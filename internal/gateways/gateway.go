package gateways

import (
	"slices"
	"time"

	"hinit/internal/control/show"
	"hinit/internal/gateways/orders"
	"hinit/profiles"
	"hinit/supervisor"
)

// gateway is the Manager's record of one profile. The Manager's mutex guards it.
type gateway struct {
	home             profiles.HomeID // identity of the profile's home directory, which stays the same when the profile is renamed; zero if unknown
	startBegan       time.Time       // when the last start of the gateway began
	inputs           profiles.Hash   // hash of the files (inputs) with which the gateway was started
	doubtfulInputs   profiles.Hash   // hash of inputs that may have changed just after the start; this content restarts the gateway only once
	platformProblem  string          // last reported problem of the gateway with its platforms
	warning          string          // the last warning about the profile, for the status
	notStartedReason string          // reason why the boot has not started the gateway, for the status
	wanted           bool            // whether the gateway should run, according to the state file
	exclusives       []profiles.Exclusive
	unrecorded       bool // whether an intent could not be written; recordLater tries again
}

// records holds the records of all profiles.
type records struct {
	byProfile map[string]*gateway
	users     map[profiles.Exclusive][]string // running gateways by their exclusive values, as of the snapshot usersOf
	usersOf   *supervisor.Snapshot            // nil after a change of the values
}

// gatewayOf returns the record of a profile, and creates it if necessary. The caller holds the mutex.
func (m *Manager) gatewayOf(profile string) *gateway {
	g := m.gateways.byProfile[profile]
	if g == nil {
		g = &gateway{}
		m.gateways.byProfile[profile] = g
	}
	return g
}

// noteNotStarted stores the reason why the boot has not started a gateway that an operator may expect to run.
func (m *Manager) noteNotStarted(d profiles.Decision) {
	if d.Start || slices.Contains([]string{profiles.Stopped, profiles.Running, profiles.State{}.Prior()}, d.PriorState) {
		return
	}
	text := "it was " + d.PriorState + " when the container ended"
	if d.PriorExit == profiles.ExitUnclean {
		text += ", without a clean exit"
	}
	text += ", so the boot has not started it: hinit start " + d.Profile.Name
	m.change(d.Profile.Name, func(g *gateway) { g.notStartedReason = text })
}

// warn reports a warning about a profile. The status shows the last one of each profile, so that no agent displaces a warning about
// the profile of another. A directory that is no profile has no such place, because an agent can make any number of them.
func (m *Manager) warn(w profiles.Warning) {
	if !m.Registry.ProfileExists(w.Profile) {
		m.Logger.Warn("%s", w)
		return
	}
	text, known := show.Line(w.Message), ""
	if m.change(w.Profile, func(g *gateway) { known, g.warning = g.warning, text }); text != known {
		m.say("warning: %s", text)
	}
}

// Warnings returns the last warning about each profile, sorted. After a re-execution, the watcher reports them again.
func (m *Manager) Warnings() (list []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, g := range m.gateways.byProfile {
		if g.warning != "" {
			list = append(list, g.warning)
		}
	}
	slices.Sort(list)
	return list
}

// forget drops the record of a profile that was removed.
func (m *Manager) forget(profile string) {
	m.Registry.Forget(profile)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.gateways.byProfile, profile)
}

// record returns a copy of the record of a profile. It is empty if the profile has none.
func (m *Manager) record(profile string) gateway {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gateways.byProfile[profile]; g != nil {
		return *g
	}
	return gateway{}
}

// change changes the record of a profile with the function set. The record is created if necessary.
func (m *Manager) change(profile string, set func(g *gateway)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set(m.gatewayOf(profile))
}

// noteHome stores the identity of a profile's home directory. It reads the disk.
func (m *Manager) noteHome(profile string) {
	if home, err := m.Store.HomeID(profile); err == nil && profile != profiles.Default {
		m.change(profile, func(g *gateway) { g.home = home })
	}
}

// Handover is the state of a Manager that re-execution hands over to the next program of PID 1.
type Handover struct {
	Inputs map[string]profiles.Hash // hashes of the inputs of running gateways, by profile
	Wanted map[string]bool          // profiles whose gateways should run, according to their state files
	Orders []orders.Unfinished

	Topology    *profiles.Topology // topology with which the default profile's gateway was started; nil from an older program
	TopologyRun uint64             // run number of the default profile's gateway
}

// HandOver returns the state for the program that PID 1 executes next.
func (m *Manager) HandOver() Handover {
	s := Handover{Inputs: make(map[string]profiles.Hash), Wanted: make(map[string]bool), Orders: m.orders.Unfinished()}
	now := m.serving.Load()
	s.Topology, s.TopologyRun = &now.Topology, now.topologyRun
	m.mu.Lock()
	defer m.mu.Unlock()
	for profile, g := range m.gateways.byProfile {
		if g.inputs != "" {
			s.Inputs[profile] = g.inputs
		}
		if g.wanted {
			s.Wanted[profile] = true
		}
	}
	return s
}

// TakeOver restores the state from [Manager.HandOver]. Call it before any other method.
func (m *Manager) TakeOver(s Handover) {
	for profile, hash := range s.Inputs {
		m.gatewayOf(profile).inputs = hash
	}
	for profile, wanted := range s.Wanted {
		m.gatewayOf(profile).wanted = wanted
	}
	if s.Topology != nil {
		m.serving.Store(&serving{Topology: *s.Topology, topologyRun: s.TopologyRun})
	}
	m.inherited = s
}
