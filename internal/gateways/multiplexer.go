package gateways

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/proc"
	"hinit/profiles"
	"hinit/supervisor"
)

// The topology says which gateway serves each profile: the profile's own, or the default profile's gateway. A gateway that
// serves several profiles is called a multiplexer.

// servedProfiles is hinit's record of the profiles that the default profile's gateway serves. It is immutable.
type servedProfiles struct {
	profiles.Topology        // topology at the start of the gateway; for a gateway that is down, at its next start
	topologyRun       uint64 // run with Topology; 0 for none

	hasReport bool           // the state file of the gateway lists the profiles that it serves
	reportRun uint64         // run behind this report
	state     profiles.State // state file with the report
}

// servedByDefault returns whether the default profile's gateway serves another profile. reported means that this gateway has
// reported so; otherwise the answer comes from the topology.
func (m *Manager) servedByDefault(profile string) (serves, reported bool) {
	d := m.Registry.Snapshot().Find(profiles.SlotName(profiles.Default))
	now := m.servedProfiles.Load()
	switch {
	case profile == profiles.Default || d == nil || d.Want != supervisor.WantUp:
		return false, false
	case now.hasReport && d.Run == now.reportRun && d.PID != 0:
		return now.state.Serves(profile), true
	}
	return now.Serves(profile), false
}

// ServedBy returns how the profile of gateway s is served, as a word of the API. It is "" without a multiplexer, for the default
// profile, and if the gateway of the profile is not wanted.
func (m *Manager) ServedBy(s *supervisor.Service) string {
	if s.Kind != supervisor.KindGateway || s.Profile == profiles.Default {
		return ""
	}
	serves, known := m.servedByDefault(s.Profile)
	own := s.State != supervisor.Down
	switch {
	case serves && own:
		return client.ServedByBoth
	case serves && known:
		return client.ServedByDefault
	case serves:
		return client.ServedByDefaultExpected
	case !m.servedProfiles.Load().Multiplexed:
		return ""
	case own:
		return client.ServedByItself
	case m.recordOf(s.Profile).wantedByStateFile:
		return client.ServedByNone
	}
	return ""
}

const servedByText = "served by the multiplexer of profile " + profiles.Default

// StatusRemark returns a remark for the status of a gateway whose profile another gateway serves, or whose exclusive value,
// such as a token, another gateway shares.
func (m *Manager) StatusRemark(s *supervisor.Service) string {
	switch m.ServedBy(s) {
	case client.ServedByBoth:
		return "served twice: by its own gateway and by the multiplexer of profile " + profiles.Default + "; end one: hinit stop " + s.Profile
	case client.ServedByDefault:
		return servedByText
	case client.ServedByDefaultExpected:
		return "expected to be " + servedByText
	case client.ServedByNone:
		return "no gateway serves it, and it is wanted: hinit start " + s.Profile
	}
	if s.State == supervisor.Down && s.Run == 0 && s.Kind == supervisor.KindGateway {
		return m.recordOf(s.Profile).notStartedReason
	}
	return m.exclusiveConflicts(s)
}

// SetOwnGatewayAllowed lets the gateway of a profile run beside the multiplexer that serves the profile, until this gateway is
// stopped.
func (m *Manager) SetOwnGatewayAllowed(service string) {
	profile, ok := profiles.SlotProfile(service)
	if serves, _ := m.servedByDefault(profile); ok && serves {
		m.Registry.SetOwnGatewayAllowed(context.Background(), profile, true) // the call ends with the supervisor's loop, so it needs no deadline
	}
}

// CheckMayStart returns an error if the multiplexer serves the profile of a gateway, so that the gateway must not start.
func (m *Manager) CheckMayStart(service string) error {
	profile, ok := profiles.SlotProfile(service)
	if serves, _ := m.servedByDefault(profile); !ok || !serves || m.Registry.MayRunOwnGateway(profile) {
		return nil
	}
	return &client.Error{Kind: client.KindFailed, Message: servedByText + " (`--force` to run it beside)"}
}

// servedRunningGateways returns the running gateways whose profiles the default profile's gateway also serves, according to
// topology t.
func (m *Manager) servedRunningGateways(t profiles.Topology) []string {
	return m.nonDefaultGateways(func(s *supervisor.Service) bool {
		return s.State != supervisor.Down && t.Serves(s.Profile) && !m.Registry.MayRunOwnGateway(s.Profile)
	})
}

// unservedDownGateways returns the gateways that are down but wanted up, and whose profiles no other gateway serves according to
// topology t.
func (m *Manager) unservedDownGateways(t profiles.Topology) []string {
	return m.nonDefaultGateways(func(s *supervisor.Service) bool {
		return s.State == supervisor.Down && !t.Serves(s.Profile) && m.recordOf(s.Profile).wantedByStateFile
	})
}

func (m *Manager) nonDefaultGateways(match func(*supervisor.Service) bool) (names []string) {
	for _, s := range m.Registry.Snapshot().Services {
		if s.Kind == supervisor.KindGateway && s.Profile != profiles.Default && match(s) {
			names = append(names, s.Name)
		}
	}
	return names
}

const endGatewaysTimeout = 2 * time.Minute

// endServedGateways ends the gateways whose profiles the default profile's gateway will serve, and blocks until all their
// processes have ended. The intents of their profiles stay on the volume.
func (m *Manager) endServedGateways(ctx context.Context, t profiles.Topology) error {
	names := m.servedRunningGateways(t)
	for _, name := range names {
		m.logGateway(name, "it ends, because the gateway of profile %s serves its profile", profiles.Default)
	}
	return m.endGateways(ctx, names...)
}

// endGateways ends gateways, and blocks until all their processes have ended or one of them is wanted again.
func (m *Manager) endGateways(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := m.Registry.Do(ctx, supervisor.Stop{Name: name}); err != nil {
			return err
		}
	}
	return m.awaitCondition(ctx, func(snap *supervisor.Snapshot) string {
		for _, name := range names {
			if s := snap.Find(name); s != nil && s.State != supervisor.Down && s.Want == supervisor.WantDown {
				return name + " has not ended"
			}
		}
		return ""
	})
}

// awaitCondition blocks until unmet returns "". It calls unmet after each change of a service. Any other result of unmet is for
// the error after endGatewaysTimeout.
func (m *Manager) awaitCondition(ctx context.Context, unmet func(*supervisor.Snapshot) string) error {
	ctx, cancel := context.WithTimeout(ctx, endGatewaysTimeout)
	defer cancel()
	for {
		changed := m.Registry.Changed()
		missing := unmet(m.Registry.Snapshot())
		if missing == "" {
			return nil
		}
		if !pause.Until(ctx, changed) {
			return fmt.Errorf("cannot change who serves the profiles: %s: %w", missing, context.Cause(ctx))
		}
	}
}

// applyTopology reads the topology at the start of the default profile's gateway. After a change, it ends gateways whose
// profiles would be served twice, and starts gateways whose profiles no gateway serves.
func (m *Manager) applyTopology(ctx context.Context) {
	run := m.defaultGatewayRun() // a later run causes another call, so read the run before the topology
	t, err := m.Store.Topology(os.Getenv, "")
	if err != nil {
		m.logGateway("", "cannot tell whether the default profile serves the others: %v", err)
	}
	m.mu.Lock()
	was := m.servedProfiles.Swap(&servedProfiles{Topology: t, topologyRun: run})
	m.mu.Unlock()
	if t.Multiplexed && !was.Multiplexed {
		m.logGateway("", "gateways that are down are %s", servedByText)
	}
	if len(m.servedRunningGateways(t)) > 0 {
		guard.Go("ending gateways whose profiles are served", func() {
			if err := m.restartAfterServed(ctx, t); err != nil {
				m.logGateway("", "%v", err)
			}
		})
	}
	if was.Multiplexed && !t.Multiplexed {
		m.startUnserved(ctx, t)
	}
	if t.Multiplexed != was.Multiplexed {
		for _, p := range m.Registry.KnownProfiles() {
			if !t.Multiplexed {
				m.Registry.SetOwnGatewayAllowed(ctx, p.Name, false)
			}
			if p.Name != profiles.Default {
				// the job updates the down file of the profile
				m.enqueue(profiles.SlotName(p.Name), func() { m.updateFromStateFile(p.Name) })
			}
		}
	}
}

// restartAfterServed keeps a profile from being served twice. The default profile's gateway has restarted, for instance after a
// crash, and gateways of profiles that it serves are running. restartAfterServed ends all of them, and starts the default
// profile's gateway again.
func (m *Manager) restartAfterServed(ctx context.Context, t profiles.Topology) error {
	name := profiles.SlotName(profiles.Default)
	m.logGateway(name, "it waits until the gateways whose profiles it serves now have ended")
	if err := m.endGateways(ctx, name); err != nil {
		return err
	}
	if err := m.endServedGateways(ctx, t); err != nil {
		return err
	}
	if want, ordered := m.Intents.LastOrder(profiles.Default); ordered && want != profiles.Running {
		return nil // an operator has stopped the default profile's gateway
	}
	return m.Registry.Do(ctx, supervisor.Start{Name: name})
}

// startUnserved starts the wanted gateways whose profiles no gateway serves.
func (m *Manager) startUnserved(ctx context.Context, t profiles.Topology) {
	for _, name := range m.unservedDownGateways(t) {
		_ = m.Registry.Do(ctx, supervisor.Start{Name: name})
	}
}

func (m *Manager) defaultGatewayRun() uint64 {
	if d := m.Registry.Snapshot().Find(profiles.SlotName(profiles.Default)); d != nil {
		return d.Run
	}
	return 0
}

// storeServedProfiles stores the profiles that the default profile's gateway serves, from its state file. If the topology has
// fewer profiles, it has changed during the start of the gateway, and storeServedProfiles reads it again.
func (m *Manager) storeServedProfiles(s *supervisor.Service, state profiles.State) {
	known := state.HasServed && proc.InRun(state.PID, state.StartTime, s.PID)
	was := m.servedProfiles.Load()
	more := func(o *supervisor.Service) bool {
		return o.State != supervisor.Down && state.Serves(o.Profile) && !was.Serves(o.Profile)
	}
	if known && !(was.hasReport && was.reportRun == s.Run) && len(m.nonDefaultGateways(more)) > 0 {
		m.applyTopology(context.Background()) // the call ends with the supervisor's loop, so it needs no deadline
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := *m.servedProfiles.Load()
	now.hasReport, now.reportRun, now.state = known, s.Run, state
	m.servedProfiles.Store(&now)
}

// ChangeTopology changes which gateways serve the profiles. If dry is set, it changes nothing and only returns the gateways
// that the change would end or start. During the change no profile is served twice. A change that has begun is completed even
// if the client stops waiting.
func (m *Manager) ChangeTopology(ctx context.Context, mode string, dry bool) (out client.TopologyReply, err error) {
	if !m.RunPlan().HasProfiles() {
		return out, errors.New("this container has no gateways")
	}
	if err := m.MayServe(); err != nil {
		return out, err
	}
	if !pause.Send(ctx, m.topologyToken, struct{}{}) {
		return out, fmt.Errorf("cannot change who serves the profiles: another change is not done: %w", context.Cause(ctx))
	}
	defer func() { <-m.topologyToken }()
	t, err := m.Store.Topology(os.Getenv, mode)
	if err != nil {
		return out, err
	}
	out = client.TopologyReply{Mode: profiles.PerProfile, DecidedBy: t.DecidedBy, DryRun: dry, Steps: []string{}}
	if t.Multiplexed {
		out.Mode = profiles.Multiplex
	}
	if mode == "" {
		return out, nil
	}
	d := m.Registry.Snapshot().Find(profiles.SlotName(profiles.Default))
	restart := d != nil && d.Want == supervisor.WantUp && m.servedProfiles.Load().Multiplexed != t.Multiplexed
	for _, name := range m.servedRunningGateways(t) {
		out.Steps = append(out.Steps, "stop "+name)
	}
	if restart {
		out.Steps = append(out.Steps, "restart "+d.Name)
	}
	if !t.Multiplexed {
		for _, name := range m.unservedDownGateways(t) {
			out.Steps = append(out.Steps, "start "+name)
		}
	}
	if dry {
		return out, nil
	}
	ctx = context.WithoutCancel(ctx)
	if err := m.Store.SetTopology(mode); err != nil {
		return out, fmt.Errorf("cannot record the topology: %w", err)
	}
	if err := m.Registry.SetTopology(ctx, t); err != nil {
		return out, err
	}
	if err := m.endServedGateways(ctx, t); err != nil {
		return out, err
	}
	if restart {
		if err := m.Registry.Do(ctx, supervisor.Restart{Name: d.Name}); err != nil {
			return out, err
		}
		err := m.awaitCondition(ctx, func(snap *supervisor.Snapshot) string {
			if s := snap.Find(d.Name); s != nil && s.Run <= d.Run {
				return d.Name + " has not ended"
			}
			return ""
		})
		if err != nil {
			return out, err
		}
	}
	m.applyTopology(ctx)
	if !t.Multiplexed {
		m.startUnserved(ctx, t)
	}
	return out, nil
}

// storeExclusiveValues stores the exclusive values, such as tokens, of a started gateway, and warns if another running gateway
// has one of them.
func (m *Manager) storeExclusiveValues(service, profile string) {
	list, err := m.Store.ExclusiveValues(profile)
	if err != nil {
		m.logGateway(service, "cannot tell whether another gateway has its tokens: %v", err)
	}
	m.updateRecord(profile, func(g *gatewayRecord) { g.exclusiveValues, m.gateways.valuesSnapshot = list, nil })
	if s := m.Registry.Snapshot().Find(service); s != nil {
		if text := m.exclusiveConflicts(s); text != "" {
			m.logGateway(service, "warning: %s", text)
		}
	}
}

const maxShownConflicts = 4

// exclusiveConflicts describes the exclusive values that a running gateway shares with others. Two gateways with the same token
// would lose messages.
func (m *Manager) exclusiveConflicts(s *supervisor.Service) string {
	if s.Kind != supervisor.KindGateway || s.PID == 0 {
		return ""
	}
	var clashes []string
	mine, snap := m.recordOf(s.Profile).exclusiveValues, m.Registry.Snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	users := m.gateways.gatewaysByExclusiveValue(snap)
	for _, x := range mine {
		for _, other := range users[x][:min(len(users[x]), maxShownConflicts+1)] {
			if other != s.Name && len(clashes) < maxShownConflicts {
				clashes = append(clashes, "it has the same "+x.Name+" as "+other)
			}
		}
	}
	return strings.Join(clashes, "; ")
}

// gatewaysByExclusiveValue returns the running gateways that use each exclusive value. It caches the result until a service or
// a value changes, because the status asks once for each gateway. The caller holds the Manager's mutex.
func (r *gatewayRecords) gatewaysByExclusiveValue(snap *supervisor.Snapshot) map[profiles.ExclusiveValue][]string {
	if r.valuesSnapshot == snap {
		return r.gatewaysByValue
	}
	r.gatewaysByValue, r.valuesSnapshot = make(map[profiles.ExclusiveValue][]string), snap
	for _, s := range snap.Services {
		if g := r.byProfile[s.Profile]; g != nil && s.Kind == supervisor.KindGateway && s.PID != 0 {
			for _, x := range g.exclusiveValues {
				r.gatewaysByValue[x] = append(r.gatewaysByValue[x], s.Name)
			}
		}
	}
	return r.gatewaysByValue
}
