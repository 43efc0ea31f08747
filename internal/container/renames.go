package container

import (
	"context"
	"sync"
	"time"

	"hinit/internal/guard"
	"hinit/profiles"
	"hinit/supervisor"
)

// renames finds out which profile that appears is one that has disappeared: its home is the same directory. A copy is another one, so
// that no two gateways run with one set of credentials. The zero value is ready for use; all methods may be called from any goroutine.
type renames struct {
	mu    sync.Mutex
	homes map[string]profiles.HomeID // of the profiles that are there, as far as anybody has looked
	left  map[profiles.HomeID]leaver // of those that were wanted up and are gone
}

// A leaver is a profile that has disappeared.
type leaver struct {
	profile string
	at      time.Time
}

// renameTime is how long after its end a profile may come back by another name.
const renameTime = time.Minute

func (r *renames) note(profile string, home profiles.HomeID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.homes == nil {
		r.homes, r.left = make(map[string]profiles.HomeID), make(map[profiles.HomeID]leaver)
	}
	r.homes[profile] = home
}

// reset forgets all profiles.
func (r *renames) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.homes)
	clear(r.left)
}

// from says that a profile is gone, and whether its gateway was wanted up. It returns the name that it goes on by, if one is known.
func (r *renames) from(profile string, up bool) (to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	home, known := r.homes[profile]
	delete(r.homes, profile)
	for old, l := range r.left {
		if time.Since(l.at) > renameTime {
			delete(r.left, old)
		}
	}
	if !known || !up {
		return ""
	}
	for name, other := range r.homes {
		if other == home {
			return name
		}
	}
	r.left[home] = leaver{profile, time.Now()}
	return ""
}

// to returns by which name a profile that has appeared was wanted up before, "" for none.
func (r *renames) to(profile string) (from string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	home := r.homes[profile]
	l, known := r.left[home]
	delete(r.left, home)
	if !known || time.Since(l.at) > renameTime || l.profile == profile {
		return ""
	}
	return l.profile
}

// takeTime is how long after its gateway a profile may go when somebody ends the one to rename or to remove the other. The agent looks
// twice a second whether the gateway is gone (contract, section 4).
const takeTime = 3 * time.Second

// takenAway says that the last exit of a gateway, whose profile is gone now, was no failure of its own: who takes a profile away ends its
// gateway first, by a signal that hinit does not know of. Until then it looks like a crash. One that has failed before is not excused.
func takenAway(s *supervisor.Service, now time.Time) bool {
	if s == nil || s.LastExit == nil || now.Sub(s.LastExit.At) >= takeTime || s.Failures > 1 {
		return false
	}
	switch s.LastExit.Cause {
	case supervisor.CauseCrash, supervisor.CauseSignal, supervisor.CauseClean:
		return true
	default:
		return false
	}
}

// noteHome remembers which directory a profile lives in. It reads the disk.
func (k *keeper) noteHome(profile string) {
	if home, err := k.c.store.HomeID(profile); err == nil && profile != profiles.Default {
		k.renames.note(profile, home)
	}
}

// runOn starts the gateway of a profile that ran under another name, when nothing of the old one is left: they have one home.
func (k *keeper) runOn(ctx context.Context, old, profile string) {
	slot := profiles.SlotName(profile)
	k.c.say("[hinit] profile %s is %s now, and its gateway goes on as %s", old, profile, slot)
	guard.Go("starting a renamed profile", func() {
		for {
			news, snap := k.c.loop.News(), k.c.loop.Snapshot()
			if snap.Stopping || snap.Find(slot) == nil {
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
		if err := k.command(ctx, "start", slot); err != nil && ctx.Err() == nil {
			k.c.say("[hinit] %s: cannot start it again after its profile was renamed: %v", slot, err)
		}
	})
}
