package program

import (
	"context"
	"fmt"
	"slices"
	"time"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

const (
	// lookApart is the least time between two scans for unused sandboxes, however many events arrive.
	lookApart = 5 * time.Second
	// lookAgain is the time before the next scan if a sandbox could not be removed, or if the engine reports no changes.
	lookAgain = time.Minute
)

// keeper looks for unused sandboxes. It scans when the engine reports a change, and when a sandbox reaches its age limit. It also
// scans within a minute after the process that owns a sandbox has ended. Between these events it sleeps.
type keeper struct {
	*hub
	owners []string // live processes that own sandboxes
}

// keep looks for unused sandboxes until the context ends.
func (h *hub) keep(ctx context.Context) {
	k := &keeper{hub: h}
	done := make(chan struct{})
	guard.Go("watching the engine", func() {
		defer close(done)
		k.watch(ctx)
	})
	defer func() { <-done }()
	apart := min(lookApart, max(h.opts.Lifetime/2, time.Second))
	last := time.Now()
	due := last.Add(apart) // time of the next scan, zero for none
	var settled time.Time
	for {
		wake := due
		if len(k.owners) > 0 {
			wake = earlier(due, time.Now().Add(lookAgain))
		}
		var alarm <-chan time.Time
		if !wake.IsZero() {
			alarm = time.After(time.Until(wake))
		}
		select {
		case <-h.changed:
			settled = time.Now().Add(sandbox.OrphanAge(h.opts.Lifetime)) // by then the leftovers of a removed container are old enough to remove
			due = earlier(due, later(time.Now(), last.Add(apart)))
		case <-alarm:
			if !wake.Equal(due) && !slices.ContainsFunc(k.owners, func(name string) bool { return !dockercli.Lives(name) }) {
				continue
			}
			last = time.Now()
			if due = k.look(ctx); settled.After(last) {
				due = earlier(due, settled)
			}
		case <-ctx.Done():
			return
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// earlier returns the earlier time. A zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// watch follows the engine's events until the context ends. If the engine does not answer or has no events, each attempt to follow
// it again also starts a scan.
func (k *keeper) watch(ctx context.Context) {
	changed := func() {
		select {
		case k.changed <- struct{}{}:
		default: // the keeper has not taken the last signal yet, and will see both changes
		}
	}
	wait, said := engineSoon, false
	for {
		err := k.engine.Watch(ctx, map[string]string{sandbox.LabelAgent: "1"}, func() { wait, said = engineSoon, false; changed() }, changed)
		if !pause.For(ctx, wait) {
			return
		}
		if wait >= lookAgain && !said {
			said = true
			k.say("the engine does not tell of changes, so it is asked every %v: %v", lookAgain, err)
		}
		wait = min(2*wait, lookAgain)
		changed()
	}
}

// look scans for unused sandboxes. It removes the container of a dead process once the idle window has passed. It also removes every
// tenant's containers that ended more than two windows ago. A running container that must outlive its agent is kept. look returns
// the time of the next scan if no event arrives, or zero for no next scan.
func (k *keeper) look(ctx context.Context) (next time.Time) {
	k.removeOld(ctx)
	own, err := k.engine.List(ctx, map[string]string{sandbox.LabelAgent: "1", sandbox.LabelClient: "", sandbox.LabelVolume: k.volume()})
	if err != nil {
		k.say("cannot look for sandboxes that nobody uses: %v", err)
		return time.Now().Add(lookAgain)
	}
	k.owners = nil
	for _, c := range own {
		if c.Labels[policy.LabelOwner] == "" {
			continue
		}
		if owner := c.Labels[sandbox.LabelClient]; dockercli.Lives(owner) {
			k.owners = append(k.owners, owner)
			continue
		}
		if end := k.lastUse(c).Add(k.opts.Lifetime); time.Now().Before(end) { // a running command counts as use
			next = earlier(next, end)
			continue
		}
		if !k.remove(ctx, c, fmt.Sprintf("its agent is dead, and nobody used it for %v", k.opts.Lifetime)) {
			next = earlier(next, time.Now().Add(lookAgain))
		}
	}
	if !k.opts.Orphans {
		return next
	}
	gone, due, err := k.all.Sweep(ctx, sandbox.Reap{})
	if err != nil {
		k.say("cannot sweep sandboxes: %v", err)
		due = time.Now().Add(lookAgain)
	}
	for _, r := range gone {
		k.say("removed the sandbox %s: %s", r.Name, r.Why)
	}
	return earlier(next, due)
}

func (k *keeper) remove(ctx context.Context, c sandbox.Container, why string) (removed bool) {
	if err := k.engine.Remove(ctx, c.ID); err != nil {
		k.say("cannot remove the sandbox %s: %v", c.Name, err)
		return false
	}
	k.say("removed the sandbox %s: %s", c.Name, why)
	return true
}

// gateKept is how long the volume of a gate without a container is kept, because a service may be about to use it.
const gateKept = 24 * time.Hour

// removeOld removes objects that no later request can use: containers of this volume that were made with another mode of root,
// private volumes whose directory is gone, and gates of other versions. The engine refuses to remove a volume that a container
// uses.
func (k *keeper) removeOld(ctx context.Context) {
	made, _ := k.engine.List(ctx, map[string]string{policy.LabelOwner: "", sandbox.LabelVolume: k.volume()}) // the next scan reports a fault
	for _, c := range made {
		if err := k.gate.RemoveReplaced(ctx, k.engine, c); err != nil {
			k.say("cannot remove %s, which was made again: %v", c.Name, err)
		}
		if policy.Root(c.Labels[policy.LabelRoot]) == k.gate.Root() {
			continue
		}
		k.remove(ctx, c, "it was made when root inside was something else; what is on its mounts stays")
	}
	private, _ := k.engine.Volumes(ctx, sandbox.VolumePrefix, map[string]string{sandbox.LabelVolume: k.volume()})
	for _, v := range private {
		if k.set.policy.Gone(v) && k.engine.RemoveVolume(ctx, v.Name) == nil {
			k.say("removed the volume %s: %s, in whose place it stood, is gone", v.Name, v.Labels[sandbox.LabelSource])
		}
	}
	gates, _ := k.engine.Volumes(ctx, policy.GatePrefix, nil)
	for _, v := range gates {
		if v.Name != k.gate.Volume() && time.Since(v.Created) > gateKept {
			_ = k.engine.RemoveVolume(ctx, v.Name) // fails if a container of another service uses the volume
		}
	}
}

// lastUse returns when a container was last used, as far as this service knows. It is never before the start of the service.
func (h *hub) lastUse(c sandbox.Container) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := later(h.began, c.Created)
	for _, t := range h.tenants {
		last = later(last, t.manager.LastUse(c.ID))
	}
	return last
}
