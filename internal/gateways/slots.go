package gateways

import (
	"context"
	"errors"
	"time"

	"hinit/internal/blocking"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

// plannedStopTimeout is how long the stop of a gateway waits for its planned-stop marker on the volume. Without the marker, the
// gateway takes the stop for a fault.
const plannedStopTimeout = 2 * time.Second

// SlotMade registers the gateway of a profile for which a client has made an s6 service directory (slot). If start is set, it also
// starts the gateway. exports are the variables that the slot's run script exports.
func (m *Manager) SlotMade(ctx context.Context, profile string, start bool, exports map[string]string) error {
	if !m.RunPlan().HasProfiles() {
		return errors.New("this container has no gateways")
	}
	if err := m.MayServe(); err != nil {
		return err
	}
	p, err := m.Store.Profile(profile)
	if err != nil {
		return err
	}
	name := profiles.SlotName(profile)
	refused := m.CheckMayStart(name)
	err = m.Registry.RegisterGateway(ctx, registry.Gateway{Profile: p, Start: start && refused == nil, Down: !start, SlotMadeByClient: true, Exports: exports})()
	switch {
	case err != nil:
		return err
	case start && refused != nil:
		m.logGateway(name, "it is not started: %v", refused)
	case start:
		m.warnIfMissing(name, profile)
	}
	return nil
}

// warnIfMissing warns if a gateway was registered for a profile that does not exist. It does not block.
func (m *Manager) warnIfMissing(service, profile string) {
	m.enqueue(service, func() {
		if there, err := m.Store.Exists(profile); err == nil && !there {
			m.logGateway(service, "it was registered, but there is no profile %q, so it fails until there is one: hinit profile create %s", profile, profile)
		}
	})
}

// SlotRemoved stops a service after a client has removed its s6 service directory (slot). The intent on the volume stays, so
// the next start of the container restores the slot.
func (m *Manager) SlotRemoved(ctx context.Context, service string) {
	m.Registry.RecordSlotRemoved(service)
	profile, gateway := profiles.SlotProfile(service)
	if gateway {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), plannedStopTimeout)
		_ = blocking.Wait(limited, "announcing a stop", func() error { // the volume may hang
			m.markPlannedStop(service, profile)
			return nil
		})
		cancel()
	}
	var e supervisor.Event = supervisor.Stop{Name: service}
	if gateway && !m.Registry.ProfileExists(profile) {
		e = supervisor.Remove{Name: service}
	}
	switch err := m.Registry.Do(ctx, e); {
	case err == nil:
		m.logGateway(service, "its slot was removed, so it is stopped")
	case !errors.Is(err, supervisor.ErrUnknown) && !errors.Is(err, supervisor.ErrStopping):
		m.logGateway(service, "its slot was removed, but it cannot be stopped: %v", err)
	}
}
