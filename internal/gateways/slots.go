package gateways

import (
	"context"
	"errors"
	"time"

	"hinit/internal/guard"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

// markerTime limits how long stopping a gateway waits for its planned-stop marker. Without the marker the gateway takes its end
// for a fault.
const markerTime = 2 * time.Second

// SlotMade registers the gateway of a profile whose slot a client has made, and starts it if start is true. exports are the
// variables that the slot's run script adds to the container's environment.
func (k *Reconciler) SlotMade(ctx context.Context, profile string, start bool, exports map[string]string) error {
	if !k.Route().HasProfiles() {
		return errors.New("this container has no gateways")
	}
	if err := k.MayServe(); err != nil {
		return err
	}
	p, err := k.Store.Profile(profile)
	if err != nil {
		return err
	}
	name := profiles.SlotName(profile)
	refused := k.Refuse(name)
	err = k.Registry.Gateway(ctx, registry.Gateway{Profile: p, Start: start && refused == nil, Down: !start, Slotted: true, Exports: exports})()
	switch {
	case err != nil:
		return err
	case start && refused != nil:
		k.say("%s: it is not started: %v", name, refused)
	case start:
		k.warnIfMissing(name, profile)
	}
	return nil
}

// warnIfMissing warns if a gateway was registered whose profile does not exist. It does not block.
func (k *Reconciler) warnIfMissing(service, profile string) {
	k.enqueue(service, func() {
		if there, err := k.Store.Exists(profile); err == nil && !there {
			k.say("%s: it was registered, but there is no profile %q, so it fails until there is one: hinit profile create %s", service, profile, profile)
		}
	})
}

// SlotRemoved stops a service whose slot a client has removed. The intent for the profile stays on the volume, because the slot
// is gone only until the next start of the container.
func (k *Reconciler) SlotRemoved(ctx context.Context, service string) {
	k.Registry.SlotGone(service)
	profile, gateway := profiles.SlotProfile(service)
	if gateway {
		marked := make(chan struct{})
		go func() { // in a goroutine, because the volume may hang
			defer close(marked)
			defer guard.Catch("announcing a stop")
			k.announceStop(service, profile)
		}()
		select {
		case <-marked:
		case <-time.After(markerTime):
		}
	}
	var e supervisor.Event = supervisor.Stop{Name: service}
	if gateway && !k.Registry.Exists(profile) {
		e = supervisor.Remove{Name: service}
	}
	switch err := k.Registry.Do(ctx, e); {
	case err == nil:
		k.say("%s: its slot was removed, so it is stopped", service)
	case !errors.Is(err, supervisor.ErrUnknown) && !errors.Is(err, supervisor.ErrStopping):
		k.say("%s: its slot was removed, but it cannot be stopped: %v", service, err)
	}
}
