package main

import (
	"context"
	"time"

	"hinit/internal/tuning"
	"hinit/sandbox"
	"hinit/sandbox/dockercli"
)

// keepEvery is how often the service looks for what nobody uses any more, at most.
const keepEvery = time.Minute

// keep looks for sandboxes that nobody uses any more, until the context ends.
func (h *hub) keep(ctx context.Context) {
	every := min(keepEvery, max(h.opts.Lifetime/2, time.Second))
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.sweep(ctx)
			new(tuning.Releaser).Release() // what a burst of commands, the engine's answers, and this look have left
		case <-ctx.Done():
			return
		}
	}
}

// sweep removes containers that a process wanted for itself when that process is dead and the idle window has passed, and the containers of
// every tenant that have ended and are older than twice the window. A container that is to outlive its agent is left alone while it runs.
func (h *hub) sweep(ctx context.Context) {
	own, err := h.engine.List(ctx, map[string]string{sandbox.LabelAgent: "1", sandbox.LabelClient: ""})
	if err != nil {
		h.say("cannot look for sandboxes that nobody uses: %v", err)
		return
	}
	for _, c := range own {
		if c.Labels["hinit-owner"] == "" || alive(c.Labels[sandbox.LabelClient]) || time.Since(h.lastUse(c)) < h.opts.Lifetime {
			continue
		}
		if err := h.engine.Remove(ctx, c.ID); err != nil {
			h.say("cannot remove the sandbox %s of an agent that is dead: %v", c.Name, err)
			continue
		}
		h.say("removed the sandbox %s: its agent is dead, and nobody used it for %v", c.Name, h.opts.Lifetime)
	}
	if !h.opts.Orphans {
		return
	}
	h.mu.Lock()
	tenants := make([]*tenant, 0, len(h.tenants))
	for _, t := range h.tenants {
		tenants = append(tenants, t)
	}
	h.mu.Unlock()
	for _, t := range tenants {
		gone, err := t.host.Manager.Sweep(ctx, sandbox.Reap{})
		if err != nil {
			h.say("cannot sweep sandboxes: %v", err)
		}
		for _, r := range gone {
			h.say("removed the sandbox %s: %s", r.Name, r.Why)
		}
	}
}

// alive says whether the process of this name exists.
func alive(process string) bool {
	pid := 0
	for _, c := range process {
		if c < '0' || c > '9' {
			break
		}
		pid = pid*10 + int(c-'0')
	}
	name, _, err := dockercli.Process(pid)
	return err == nil && name == process
}

// lastUse is when a container was last used, as far as this service knows: not before it began to look.
func (h *hub) lastUse(c sandbox.Container) time.Time {
	last := h.began
	if c.Created.After(last) {
		last = c.Created
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range []string{c.ID, c.ID[:min(12, len(c.ID))], c.Name} {
		if at := h.used[name]; at.After(last) {
			last = at
		}
	}
	return last
}
