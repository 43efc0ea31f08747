package gateways

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

// errNotWatching is the error of a scan before the boot has read the profiles.
var errNotWatching = errors.New("cannot look at the profiles: the boot is not done yet; try again")

// Rescan registers and removes gateways so that they match the profiles on the volume. It blocks until that is done.
func (m *Manager) Rescan(ctx context.Context) error {
	switch {
	case !m.RunPlan().HasProfiles(), m.MayServe() != nil: // this init does not supervise profiles
		return nil
	case m.Registry.Snapshot().Stopping:
		return supervisor.ErrStopping
	}
	w := m.watch()
	if w == nil {
		return errNotWatching
	}
	return explainTimeout(ctx, w.Rescan(ctx))
}

// FindProfile makes the watcher look for a profile that may just have been created, and blocks until it has looked. name is the
// name of the profile or of its gateway. FindProfile tries both, because a profile may have the name of another profile's
// gateway.
func (m *Manager) FindProfile(ctx context.Context, name string) error {
	if !m.RunPlan().HasProfiles() {
		return nil
	}
	w := m.watch()
	if w == nil {
		return errNotWatching
	}
	if profile, ok := profiles.SlotProfile(name); ok {
		if err := w.Find(ctx, profile); err != nil {
			return explainTimeout(ctx, err)
		}
	}
	return explainTimeout(ctx, w.Find(ctx, name))
}

// explainTimeout replaces a timeout error with one that says that the volume does not answer.
func explainTimeout(ctx context.Context, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot look at the profiles: the data volume does not answer: %w", context.Cause(ctx))
	}
	return err
}

// handleProfileEvent handles a change of a profile that the watcher reports.
func (m *Manager) handleProfileEvent(ctx context.Context, e profiles.Event) {
	switch e := e.(type) {
	case profiles.Appeared:
		m.handleAppeared(ctx, e.Profile)
	case profiles.Disappeared:
		m.handleDisappeared(ctx, e.Profile.Name, e.DirChanged)
	case profiles.StateChanged:
		m.enqueue(profiles.SlotName(e.Profile.Name), func() { m.updateFromStateFile(e.Profile.Name) })
	case profiles.Heartbeat:
		m.OnStateWritten(e.Profile.Name)
	case profiles.InputsChanged:
		m.ReadSecrets(profiles.SlotName(e.Profile.Name), e.Profile.Name)
		m.Registry.Post(supervisor.InputsChanged{Name: profiles.SlotName(e.Profile.Name)})
	case profiles.Warned:
		m.limitedLog.write(m.Logger, "warnings of "+e.Warning.Profile, "warning: "+e.Warning.Message)
	}
}

func (m *Manager) handleAppeared(ctx context.Context, p profiles.Profile) {
	m.logGateway("", "profile %s appeared", p.Name)
	m.CorrectOwner(ctx, p.Name)
	m.Registry.AddProfile(p.Name)
	state, _ := m.Store.ReadState(p.Name) // a gateway with an unreadable state file is not started
	m.mu.Lock()
	start := m.unreadProfiles.shouldStart(p.Name, state, m.Started)
	m.mu.Unlock()
	err := m.Registry.RegisterGateway(ctx, registry.Gateway{
		Profile: p, Start: start && !m.isCmdGateway(p.Name), Down: state.PriorState() != profiles.Running || m.isCmdGateway(p.Name), WaitsForSlot: true,
	})()
	if err != nil && !errors.Is(err, supervisor.ErrStopping) {
		m.Logger.Warn("%v", err)
	}
	m.storeHome(p.Name)
	if old := m.formerName(p.Name); old != "" {
		m.startRenamed(ctx, old, p.Name)
	}
}

func (m *Manager) handleDisappeared(ctx context.Context, profile string, changed time.Time) {
	m.logGateway("", "profile %s disappeared", profile)
	service := profiles.SlotName(profile)
	_ = m.Registry.ReapNow(ctx) // the client that removed the profile has seen its gateway end, so the snapshot must show that too
	s := m.Registry.Snapshot().Find(service)
	renamed := m.recordRemoval(profile, s != nil && s.Want == supervisor.WantUp)
	m.Intents.ForgetOrder(profile)
	m.dropRecord(profile)
	if endedForRemoval(s, changed, time.Now()) {
		_ = m.Registry.Do(ctx, supervisor.CorrectCause{Name: service, Run: s.LastExit.Run, Cause: supervisor.CauseOperator})
	}
	_ = m.Registry.Do(ctx, supervisor.Remove{Name: service}) // Do fails if the service is already gone
	if err := m.Registry.RemoveSlot(ctx, service); err != nil {
		m.logGateway("", "%v", err)
	}
	if renamed != "" {
		m.startRenamed(ctx, profile, renamed)
	}
}

// removedProfile remembers a profile that was removed. If a new profile has the same home directory, it is the removed profile
// under a new name, because a copy has another directory. The gateway of the former name may then still run with the same
// credentials.
type removedProfile struct {
	profile     string
	removedAt   time.Time
	wasWantedUp bool // the desired state was up, and the gateway was not started under another name yet
}

const (
	// renameWindow is the maximum time between the disappearance of a profile and its appearance under another name.
	renameWindow = time.Minute
	// removalWindow is the maximum time between the end of a gateway and the removal of its profile, for the removal to count as
	// the cause. The agent looks twice a second whether the gateway has ended (contract, section 4).
	removalWindow = 3 * time.Second
)

// recordRemoval stores the removal of a profile. up means that the desired state of its gateway was up. If the profile has
// already appeared under a new name, recordRemoval returns this name, and otherwise "".
func (m *Manager) recordRemoval(profile string, up bool) string {
	snap := m.Registry.Snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.gateways.removedByHome, func(_ profiles.HomeID, d removedProfile) bool {
		return time.Since(d.removedAt) > renameWindow && !isServiceLive(snap, profiles.SlotName(d.profile))
	})
	g := m.gateways.byProfile[profile]
	if g == nil || g.home == (profiles.HomeID{}) {
		return ""
	}
	to := ""
	for name, other := range m.gateways.byProfile {
		if up && name != profile && other.home == g.home {
			to = name
		}
	}
	m.gateways.removedByHome[g.home] = removedProfile{profile, time.Now(), up && to == ""}
	return to
}

// formerName returns the former name of a new profile, if its gateway was wanted up under that name. Otherwise it returns "".
func (m *Manager) formerName(profile string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	home := m.gatewayOf(profile).home
	d, known := m.gateways.removedByHome[home]
	if !known || d.profile == profile {
		delete(m.gateways.removedByHome, home)
		return ""
	}
	m.gateways.removedByHome[home] = removedProfile{d.profile, d.removedAt, false}
	if !d.wasWantedUp || time.Since(d.removedAt) > renameWindow {
		return ""
	}
	return d.profile
}

// endedForRemoval reports whether the last exit of a gateway was probably a part of the removal of its profile. A program that
// removes a profile first ends the gateway with a signal, which looks like a crash. So hinit restarts the gateway at once, and
// the new run may end too, because its home is gone. gone is the time of the removal; it counts only within renameWindow before
// now. A gateway with several earlier failures does not count.
func endedForRemoval(s *supervisor.Service, gone, now time.Time) bool {
	if s == nil || s.LastExit == nil || !slices.Contains([]supervisor.Cause{supervisor.CauseCrash, supervisor.CauseSignal, supervisor.CauseClean}, s.LastExit.Cause) {
		return false
	}
	if age := now.Sub(gone); age < 0 || age > renameWindow {
		gone = now
	}
	before := gone.Sub(s.LastExit.At)
	again := before+s.LastExit.Uptime < removalWindow // the removal may also have ended the run before the last one
	return before < 0 || before < removalWindow && (s.Failures < 2 || s.Failures == 2 && again)
}

// startRenamed starts the gateway of a profile that has got a new name.
func (m *Manager) startRenamed(ctx context.Context, old, profile string) {
	service := profiles.SlotName(profile)
	m.logGateway("", "profile %s is %s now, and its gateway continues as %s", old, profile, service)
	guard.Go("starting a renamed profile", func() {
		switch err := m.Command(ctx, client.VerbStart, service); {
		case err == nil, ctx.Err() != nil, errors.Is(err, supervisor.ErrStopping), m.Registry.Snapshot().Find(service) == nil:
		default:
			m.logGateway(service, "cannot start it again after its profile was renamed: %v", err)
		}
	})
}

func isServiceLive(snap *supervisor.Snapshot, service string) bool {
	s := snap.Find(service)
	return s != nil && s.State != supervisor.Down
}

// awaitFormerGateway blocks while a gateway under a former name of this profile still uses its home. After "mv coder writer",
// for example, the gateway of coder may still be stopping. It may read the disk.
func (m *Manager) awaitFormerGateway(ctx context.Context, profile string) error {
	for {
		changed, snap := m.Registry.Changed(), m.Registry.Snapshot()
		former := m.formerGateway(profile)
		if !isServiceLive(snap, former) || snap.Stopping {
			return nil
		}
		if !pause.Until(ctx, changed) {
			return fmt.Errorf("%s has the same home and has not ended yet; try again when it is down", former)
		}
	}
}

// formerGateway returns the gateway under a former name of a profile, or "". Both names have the same home directory.
func (m *Manager) formerGateway(profile string) (service string) {
	m.mu.Lock()
	g, other := m.gateways.byProfile[profile], ""
	if g != nil && g.home != (profiles.HomeID{}) {
		if d, known := m.gateways.removedByHome[g.home]; known && d.profile != profile {
			service = profiles.SlotName(d.profile)
		}
		for name, o := range m.gateways.byProfile {
			if name != profile && o.home == g.home {
				other = name
			}
		}
	}
	m.mu.Unlock()
	if other == "" {
		return service
	}
	if there, err := m.Store.Exists(other); err != nil || there { // another directory now has that name
		return service
	}
	return profiles.SlotName(other) // the watcher has not yet noticed the change
}
