package gateways

import (
	"slices"
	"time"

	"hinit/internal/control/show"
	"hinit/internal/gateways/orders"
	"hinit/profiles"
	"hinit/supervisor"
)

// gatewayRecord is the Manager's record of one profile. The Manager's mutex guards it.
type gatewayRecord struct {
	home      profiles.HomeID    // home directory of the profile, which survives a renaming; zero if unknown
	startedAt time.Time          // when the last start of the gateway began
	inputs    profiles.InputHash // hash of the inputs with which the gateway was started
	// hash of inputs that may have changed just after the start. These inputs restart the gateway only once.
	doubtfulInputs    profiles.InputHash
	platformProblem   string // last problem with its chat platforms that the gateway reported
	notStartedReason  string // why the boot did not start the gateway, for the status
	wantedByStateFile bool
	exclusiveValues   []profiles.ExclusiveValue
	intentUnrecorded  bool // the volume lacks the intent; retryRecordLater tries again
}

// gatewayRecords are the Manager's records of all profiles.
type gatewayRecords struct {
	byProfile       map[string]*gatewayRecord
	removedByHome   map[profiles.HomeID]removedProfile   // removed profiles by their home directory, to recognize renamed profiles
	gatewaysByValue map[profiles.ExclusiveValue][]string // running gateways by exclusive value (such as a token), for the snapshot valuesSnapshot
	valuesSnapshot  *supervisor.Snapshot                 // snapshot behind users; nil after a change of the values
}

func (m *Manager) gatewayOf(profile string) *gatewayRecord {
	g := m.gateways.byProfile[profile]
	if g == nil {
		g = &gatewayRecord{}
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
	m.updateRecord(d.Profile.Name, func(g *gatewayRecord) { g.notStartedReason = text })
}

// Warnings returns the current warnings about profiles and their directories, sorted. Warnings about one agent's profile never
// displace warnings about another's.
func (m *Manager) Warnings() (list []string) {
	if w := m.watch(); w != nil {
		for _, warning := range w.Warnings() {
			list = append(list, supervisor.ShortenText(show.EscapeLine(warning.Message)))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(list)))
}

// dropRecord drops the record of a removed profile.
func (m *Manager) dropRecord(profile string) {
	m.Registry.ForgetProfile(profile)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.gateways.byProfile, profile)
}

func (m *Manager) recordOf(profile string) gatewayRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.gateways.byProfile[profile]; g != nil {
		return *g
	}
	return gatewayRecord{}
}

func (m *Manager) updateRecord(profile string, set func(g *gatewayRecord)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	set(m.gatewayOf(profile))
}

// storeHome stores which directory is the home of a profile. It reads the disk.
func (m *Manager) storeHome(profile string) {
	if home, err := m.Store.HomeID(profile); err == nil && profile != profiles.Default {
		m.updateRecord(profile, func(g *gatewayRecord) { g.home = home })
	}
}

// Handover is the state that a Manager passes to the next program when PID 1 re-executes itself.
type Handover struct {
	Inputs map[string]profiles.InputHash // hashes of the inputs of running gateways, by profile; "" if a hash is unknown
	Wanted map[string]bool               // whether the state file of each profile says that its gateway should run
	Orders []orders.UnfinishedOrder      // orders that the next program must carry out

	Topology    profiles.Topology // topology with which the default profile's gateway was started
	TopologyRun uint64            // run of the default profile's gateway to which Topology belongs
}

// HandOver returns the state that TakeOver needs in the program after a re-execution.
func (m *Manager) HandOver() Handover {
	s := Handover{Inputs: make(map[string]profiles.InputHash), Wanted: make(map[string]bool), Orders: m.orders.Unfinished()}
	now := m.servedProfiles.Load()
	s.Topology, s.TopologyRun = now.Topology, now.topologyRun
	m.mu.Lock()
	defer m.mu.Unlock()
	for profile, g := range m.gateways.byProfile {
		s.Inputs[profile], s.Wanted[profile] = g.inputs, g.wantedByStateFile
	}
	return s
}

// TakeOver restores the state that [Manager.HandOver] returned. Call it before any other method.
func (m *Manager) TakeOver(s Handover) {
	for profile, hash := range s.Inputs {
		m.gatewayOf(profile).inputs = hash
	}
	for profile, wanted := range s.Wanted {
		m.gatewayOf(profile).wantedByStateFile = wanted
	}
	m.servedProfiles.Store(&servedProfiles{Topology: s.Topology, topologyRun: s.TopologyRun})
	m.inheritedState = s
}
