package program

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/samber/lo"

	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

const (
	// scanInterval is the minimum time between two scans for unused sandboxes, however many events arrive.
	scanInterval = 5 * time.Second
	// rescanTime is the time until the next scan if a sandbox could not be removed or the engine reports no changes.
	rescanTime = time.Minute
)

// sweeper removes unused sandboxes. It scans for them when the engine reports a change, and when a sandbox reaches its age limit.
// It also scans within a minute after the end of a process that owns a sandbox. Between these events it sleeps.
type sweeper struct {
	*service
	owners []string // names of the live processes that own sandboxes
}

// keepSandboxes runs a sweeper until the context ends.
func (h *service) keepSandboxes(ctx context.Context) {
	k := &sweeper{service: h}
	done := make(chan struct{})
	guard.Go("watching the engine", func() {
		defer close(done)
		k.watch(ctx)
	})
	defer func() { <-done }()
	apart := min(scanInterval, max(h.opts.Lifetime/2, time.Second))
	last := time.Now()
	due := last.Add(apart) // when the next scan is due, zero for never
	var settled time.Time
	for {
		wake := due
		if len(k.owners) > 0 {
			wake = earlierTime(due, time.Now().Add(rescanTime))
		}
		var alarm <-chan time.Time
		if !wake.IsZero() {
			alarm = time.After(time.Until(wake))
		}
		select {
		case <-h.changed:
			settled = time.Now().Add(sandbox.OrphanAge(h.opts.Lifetime)) // by then a removed container's leftovers are old enough
			due = earlierTime(due, lo.Latest(time.Now(), last.Add(apart)))
		case <-alarm:
			if !wake.Equal(due) && !slices.ContainsFunc(k.owners, func(name string) bool { return !dockercli.IsAlive(name) }) {
				continue
			}
			last = time.Now()
			if due = k.scan(ctx); settled.After(last) {
				due = earlierTime(due, settled)
			}
		case <-ctx.Done():
			return
		}
	}
}

// earlierTime returns the earlier of two times. A zero time means never.
func earlierTime(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// watch follows the engine's events until the context ends. If the engine does not answer or has no events, watch retries, and
// each retry also starts a scan.
func (k *sweeper) watch(ctx context.Context) {
	changed := func() { pause.Wake(k.changed) }
	wait, said := engineRetryTime, false
	for {
		err := k.engine.Watch(ctx, map[string]string{sandbox.LabelAgent: "1"}, func() { wait, said = engineRetryTime, false; changed() }, changed)
		if !pause.For(ctx, wait) {
			return
		}
		if wait >= rescanTime && !said {
			said = true
			k.log("the engine does not tell of changes, so it is asked every %v: %v", rescanTime, err)
		}
		wait = min(2*wait, rescanTime)
		changed()
	}
}

// scan removes unused sandboxes. It removes the container of a dead process after the idle window, which is the lifetime in the
// options. It also removes containers of all tenants that ended more than two idle windows ago. A running container that is meant
// to outlive its agent is kept. scan returns the time at which the next scan is due if no event arrives earlier. A zero time
// means never.
func (k *sweeper) scan(ctx context.Context) (next time.Time) {
	k.removeOld(ctx)
	own, err := k.engine.List(ctx, map[string]string{sandbox.LabelAgent: "1", sandbox.LabelClient: "", sandbox.LabelVolume: k.volume()})
	if err != nil {
		k.log("cannot look for sandboxes that nobody uses: %v", err)
		return time.Now().Add(rescanTime)
	}
	k.owners = nil
	for _, c := range own {
		if c.Labels[policy.LabelOwner] == "" {
			continue
		}
		if owner := c.Labels[sandbox.LabelClient]; dockercli.IsAlive(owner) {
			k.owners = append(k.owners, owner)
			continue
		}
		if end := k.lastUse(c).Add(k.opts.Lifetime); time.Now().Before(end) { // a running command counts as a use
			next = earlierTime(next, end)
			continue
		}
		if !k.remove(ctx, c, fmt.Sprintf("its agent is dead, and nobody used it for %v", k.opts.Lifetime)) {
			next = earlierTime(next, time.Now().Add(rescanTime))
		}
	}
	if !k.opts.SweepOrphans {
		return next
	}
	gone, due, err := k.sweeper.Sweep(ctx, sandbox.SweepOptions{})
	if err != nil {
		k.log("cannot sweep sandboxes: %v", err)
		due = time.Now().Add(rescanTime)
	}
	for _, r := range gone {
		k.log("removed the sandbox %s: %s", r.Name, r.Why)
	}
	return earlierTime(next, due)
}

func (k *sweeper) remove(ctx context.Context, c sandbox.Container, why string) (removed bool) {
	if err := k.engine.Remove(ctx, c.ID); err != nil {
		k.log("cannot remove the sandbox %s: %v", c.Name, err)
		return false
	}
	k.log("removed the sandbox %s: %s", c.Name, why)
	return true
}

// gateKeepTime is the time for which a volume with a gate program is kept without a container. Another service may be about
// to use the volume.
const gateKeepTime = 24 * time.Hour

// removeOld removes objects that later requests can't use. These are containers of this volume that were made under another
// root mode, and private volumes whose directory is gone. It also removes volumes with other versions of the gate program.
// The engine itself refuses to remove a volume that a container uses.
func (k *sweeper) removeOld(ctx context.Context) {
	made, _ := k.engine.List(ctx, map[string]string{policy.LabelOwner: "", sandbox.LabelVolume: k.volume()}) // ignore the error: the next scan reports it
	for _, c := range made {
		if err := k.gate.RemoveReplaced(ctx, k.engine, c); err != nil {
			k.log("cannot remove %s, which was made again: %v", c.Name, err)
		}
		if policy.Root(c.Labels[policy.LabelRoot]) == k.gate.Root() {
			continue
		}
		k.remove(ctx, c, "it was made when root inside was something else; what is on its mounts stays")
	}
	private, _ := k.engine.Volumes(ctx, sandbox.VolumePrefix, map[string]string{sandbox.LabelVolume: k.volume()})
	for _, v := range private {
		if k.settings.policy.SourceGone(v) && k.engine.RemoveVolume(ctx, v.Name) == nil {
			k.log("removed the volume %s: %s, in whose place it stood, is gone", v.Name, v.Labels[sandbox.LabelSource])
		}
	}
	gates, _ := k.engine.Volumes(ctx, policy.GatePrefix, nil)
	for _, v := range gates {
		if v.Name != k.gate.Volume() && time.Since(v.Created) > gateKeepTime {
			_ = k.engine.RemoveVolume(ctx, v.Name) // fails if a container of another service uses the volume
		}
	}
}

// lastUse returns the time at which a container was last used, as far as this service knows. The result is never earlier than the
// start of the service.
func (h *service) lastUse(c sandbox.Container) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := lo.Latest(h.began, c.Created)
	for _, t := range h.tenants {
		last = lo.Latest(last, t.manager.LastUse(c.ID))
	}
	return last
}
