package program

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/samber/lo"

	"hinit/internal/control/show"
	"hinit/internal/guard"
	"hinit/internal/pause"
	"hinit/sandbox"
	"hinit/sandbox/dockercli"
	"hinit/sandbox/policy"
)

const (
	// scanInterval is the shortest time between two scans for unused sandboxes, however many events arrive.
	scanInterval = 5 * time.Second
	// rescanInterval is the time until the next scan if a sandbox could not be removed, or if the engine reports no events.
	rescanInterval = time.Minute
)

// cleanUp removes unused sandboxes until ctx ends. It scans for them when the engine reports a change and when a sandbox
// reaches its age limit. It also scans within a minute after the end of a process that owns a sandbox. At other times it
// sleeps.
func (h *service) cleanUp(ctx context.Context) {
	done := guard.GoWithDone("watching the engine", func() { h.watch(ctx) })
	defer func() { <-done }()
	apart := min(scanInterval, max(h.opts.Lifetime/2, time.Second))
	last := time.Now()
	due := last.Add(apart) // Time of the next scan; zero: never.
	var settled time.Time
	for {
		wake := lo.Ternary(len(h.ownerProcesses) > 0, sandbox.EarlierTime(due, time.Now().Add(rescanInterval)), due)
		var alarm <-chan time.Time
		if !wake.IsZero() {
			alarm = time.After(time.Until(wake))
		}
		select {
		case <-h.scanRequests:
			// Scan again when the files of a removed container are old enough to be removed.
			settled = time.Now().Add(sandbox.MinOrphanAge(h.opts.Lifetime))
			due = sandbox.EarlierTime(due, lo.Latest(time.Now(), last.Add(apart)))
		case <-alarm:
			if !wake.Equal(due) && !slices.ContainsFunc(h.ownerProcesses, func(name string) bool { return !dockercli.ProcessIsAlive(name) }) {
				continue
			}
			last = time.Now()
			due = h.scan(ctx)
			if settled.After(last) {
				due = sandbox.EarlierTime(due, settled)
			}
		case <-ctx.Done():
			return
		}
	}
}

// watch follows the engine's events until ctx ends. If the engine does not answer or sends no events, watch tries again, and
// requests a scan each time.
func (h *service) watch(ctx context.Context) {
	changed := func() { pause.Wake(h.scanRequests) }
	wait, reported := engineRetryInterval, false
	for {
		err := h.engine.Watch(ctx, map[string]string{sandbox.LabelAgent: "1"}, func() { wait, reported = engineRetryInterval, false; changed() }, changed)
		if !pause.For(ctx, wait) {
			return
		}
		if wait >= rescanInterval && !reported {
			reported = true
			h.log("the engine does not tell of changes, so it is asked every %v: %v", rescanInterval, err)
		}
		wait = min(2*wait, rescanInterval)
		changed()
	}
}

// scan removes unused sandboxes. It removes the container of a dead process when it was unused for the idle window
// (Options.Lifetime). It removes any container that ended more than two idle windows ago. It keeps a running container that
// is meant to outlive its agent. It returns the time of the next scan if no event comes before, or zero.
func (h *service) scan(ctx context.Context) (next time.Time) {
	h.removeUnusable(ctx)
	own, err := h.engine.List(ctx, map[string]string{sandbox.LabelAgent: "1", sandbox.LabelClient: "", sandbox.LabelVolume: h.volume()})
	if err != nil {
		h.log("cannot look for unused sandboxes: %v", err)
		return time.Now().Add(rescanInterval)
	}
	h.ownerProcesses = nil
	for _, c := range own {
		if c.Labels[policy.LabelOwner] == "" {
			continue
		}
		if owner := c.Labels[sandbox.LabelClient]; dockercli.ProcessIsAlive(owner) {
			h.ownerProcesses = append(h.ownerProcesses, owner)
			continue
		}
		// Keep a sandbox with a running command: lastUse then returns the current time.
		if end := h.lastUse(c).Add(h.opts.Lifetime); time.Now().Before(end) {
			next = sandbox.EarlierTime(next, end)
			continue
		}
		if !h.remove(ctx, c, fmt.Sprintf("its agent is dead, and it was not used for %v", h.opts.Lifetime)) {
			next = sandbox.EarlierTime(next, time.Now().Add(rescanInterval))
		}
	}
	if !h.opts.SweepOrphans {
		return next
	}
	gone, due, err := h.sweeper.Sweep(ctx, sandbox.SweepOptions{})
	if err != nil {
		h.log("cannot sweep sandboxes: %v", err)
		due = time.Now().Add(rescanInterval)
	}
	for _, r := range gone {
		h.log("removed the sandbox %s: %s", r.Name, r.Why)
	}
	return sandbox.EarlierTime(next, due)
}

func (h *service) remove(ctx context.Context, c sandbox.Container, why string) (removed bool) {
	if err := h.engine.Remove(ctx, c.ID); err != nil {
		h.log("cannot remove the sandbox %s: %v", c.Name, err)
		return false
	}
	h.log("removed the sandbox %s: %s", c.Name, why)
	return true
}

// gateKeepTime is how long a volume with a gate program is kept without a container, because another service may be about to
// use it. A container that fills such a volume is kept for the same time.
const gateKeepTime = 24 * time.Hour

// removeUnusable removes containers and volumes that no later request can use. These are containers that were made under
// another [policy.RootMode], private volumes whose directory is gone, and volumes with other gate programs. It also removes the
// container through which a killed service was filling such a volume. The engine keeps a volume that a container uses.
func (h *service) removeUnusable(ctx context.Context) {
	// Ignore errors, because the next scan tries again.
	made, _ := h.engine.List(ctx, map[string]string{policy.LabelOwner: "", sandbox.LabelVolume: h.volume()})
	for _, c := range made {
		if err := h.gate.RemoveReplaced(ctx, h.engine, c); err != nil {
			h.log("cannot remove %s, which was made again: %v", c.Name, err)
		}
		if policy.RootMode(c.Labels[policy.LabelRoot]) == h.gate.KnownRootMode() {
			continue
		}
		h.remove(ctx, c, "it was made while root inside was another user outside; the files on its mounts stay")
	}
	private, _ := h.engine.Volumes(ctx, sandbox.VolumePrefix, map[string]string{sandbox.LabelVolume: h.volume()})
	for _, v := range private {
		if h.settings.policy.IsSourceGone(v) && h.engine.RemoveVolume(ctx, v.Name) == nil {
			h.log("removed the volume %s: %s, in whose place it stood, is gone", v.Name, show.EscapeLine(v.Labels[sandbox.LabelSource]))
		}
	}
	filling, _ := h.engine.List(ctx, map[string]string{policy.LabelOwner: policy.GateOwnerLabel})
	for _, c := range filling {
		if time.Since(c.Created) > gateKeepTime {
			h.remove(ctx, c, "the service that filled a volume through it was killed")
		}
	}
	gates, _ := h.engine.Volumes(ctx, policy.GatePrefix, nil)
	for _, v := range gates {
		if v.Name != h.gate.Volume() && time.Since(v.Created) > gateKeepTime {
			_ = h.engine.RemoveVolume(ctx, v.Name) // Ignore the error: a container of another service may use the volume.
		}
	}
}

// lastUse returns when a container was last used, as far as this service knows. The time is never before the start of the
// service.
func (h *service) lastUse(c sandbox.Container) time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := lo.Latest(h.startedAt, c.Created)
	for _, t := range h.tenants {
		last = lo.Latest(last, t.manager.LastUse(c.ID))
	}
	return last
}
