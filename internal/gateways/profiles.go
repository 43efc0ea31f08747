package gateways

import (
	"context"
	"errors"
	"time"

	"hinit/client"
	"hinit/internal/guard"
	"hinit/internal/registry"
	"hinit/profiles"
	"hinit/supervisor"
)

// profileEvent is called by the watcher.
func (k *Keeper) profileEvent(ctx context.Context, e profiles.Event) {
	switch e := e.(type) {
	case profiles.Appeared:
		k.appeared(ctx, e.Profile)
	case profiles.Disappeared:
		k.disappeared(ctx, e.Profile.Name)
	case profiles.StateChanged:
		k.enqueue(profiles.SlotName(e.Profile.Name), func() { k.followState(e.Profile.Name) })
	case profiles.Beat:
		k.Beat(e.Profile.Name)
	case profiles.InputsChanged:
		k.ReadSecrets(profiles.SlotName(e.Profile.Name), e.Profile.Name)
		k.Registry.Post(supervisor.Inputs{Name: profiles.SlotName(e.Profile.Name)})
	case profiles.Warned:
		k.Voice.Warn("%s", e.Warning)
	}
}

func (k *Keeper) appeared(ctx context.Context, p profiles.Profile) {
	k.say("profile %s appeared", p.Name)
	k.Adopt(ctx, p.Name)
	k.Registry.Found(p.Name)
	state, _ := k.Store.ReadState(p.Name) // without one it does not start by itself
	k.mu.Lock()
	start := k.late.start(p.Name, state, k.Started)
	k.mu.Unlock()
	err := k.Registry.Gateway(ctx, registry.Gateway{
		Profile: p, Start: start && !k.isCmd(p.Name), Down: state.Prior() != profiles.Running || k.isCmd(p.Name), Now: true,
	})()
	if err != nil && !errors.Is(err, supervisor.ErrStopping) {
		k.Voice.Warn("%v", err)
	}
	k.noteHome(p.Name)
	if old := k.renamedFrom(p.Name); old != "" {
		k.startRenamed(ctx, old, p.Name)
	}
}

func (k *Keeper) disappeared(ctx context.Context, profile string) {
	k.say("profile %s disappeared", profile)
	service := profiles.SlotName(profile)
	_ = k.Registry.Sweep(ctx) // whoever took the profile away has seen the end of its gateway, and the snapshot is to show it too
	s := k.Registry.Snapshot().Find(service)
	renamed := k.renamedTo(profile, s != nil && s.Want == supervisor.WantUp)
	k.Intents.Forget(profile)
	k.forget(profile)
	if endedForRemoval(s, time.Now()) {
		_ = k.Registry.Do(ctx, supervisor.Explained{Name: service, Run: s.LastExit.Run, Cause: supervisor.CauseOperator})
	}
	_ = k.Registry.Do(ctx, supervisor.Remove{Name: service}) // it may be gone already
	if err := k.Registry.Withdraw(ctx, service); err != nil {
		k.say("%v", err)
	}
	if renamed != "" {
		k.startRenamed(ctx, profile, renamed)
	}
}

// A departed profile was wanted up when it disappeared. If it was renamed, its home is the same directory; a copy is another one.
// So no two gateways run with one set of credentials.
type departed struct {
	profile string
	at      time.Time
}

const (
	// renameTime is how long after its end a profile may come back by another name.
	renameTime = time.Minute
	// removalTime is how long after its gateway a profile may go, when a client renames or removes it. The agent looks twice a
	// second whether the gateway is gone (contract, section 4).
	removalTime = 3 * time.Second
)

// renamedTo notes that a profile is gone, and whether its gateway was wanted up. It returns the new name of the profile, if that is
// known already.
func (k *Keeper) renamedTo(profile string, up bool) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	for old, d := range k.left {
		if time.Since(d.at) > renameTime {
			delete(k.left, old)
		}
	}
	g := k.gateways[profile]
	if g == nil || g.home == (profiles.HomeID{}) || !up {
		return ""
	}
	for name, other := range k.gateways {
		if name != profile && other.home == g.home {
			return name
		}
	}
	k.left[g.home] = departed{profile, time.Now()}
	return ""
}

// renamedFrom returns by which name a profile that has appeared was wanted up before, "" for none.
func (k *Keeper) renamedFrom(profile string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	home := k.get(profile).home
	d, known := k.left[home]
	delete(k.left, home)
	if !known || time.Since(d.at) > renameTime || d.profile == profile {
		return ""
	}
	return d.profile
}

// endedForRemoval reports whether the last exit of a gateway whose profile is gone may belong to the removal. The remover ends
// the gateway first, by a signal that hinit does not know of. A gateway that has failed before is not excused.
func endedForRemoval(s *supervisor.Service, now time.Time) bool {
	if s == nil || s.LastExit == nil || now.Sub(s.LastExit.At) >= removalTime || s.Failures > 1 {
		return false
	}
	switch s.LastExit.Cause {
	case supervisor.CauseCrash, supervisor.CauseSignal, supervisor.CauseClean:
		return true
	default:
		return false
	}
}

// startRenamed starts the gateway of a profile that ran under another name, once nothing of the old one runs: they have one home.
func (k *Keeper) startRenamed(ctx context.Context, old, profile string) {
	service := profiles.SlotName(profile)
	k.say("profile %s is %s now, and its gateway goes on as %s", old, profile, service)
	guard.Go("starting a renamed profile", func() {
		for {
			news, snap := k.Registry.News(), k.Registry.Snapshot()
			if snap.Stopping || snap.Find(service) == nil {
				return
			}
			if was := snap.Find(profiles.SlotName(old)); was == nil || was.State == supervisor.Down {
				break
			}
			select {
			case <-news:
			case <-ctx.Done():
				return
			}
		}
		if err := k.Command(ctx, client.VerbStart, service); err != nil && ctx.Err() == nil {
			k.say("%s: cannot start it again after its profile was renamed: %v", service, err)
		}
	})
}
