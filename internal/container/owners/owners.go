// Package owners gives the agent its files back in the background: all of them after the boot, a profile's when it appears or is
// started.
//
// It promises: only one repair runs at a time, and requests that come meanwhile are joined into one. [Repairer.Run] uses the
// caller's goroutine; it owns none.
package owners

import (
	"context"
	"maps"
	"slices"
	"sync"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/container/initlog"
	"hinit/profiles"
)

// Repairer repairs owners. Its methods may be called from any goroutine.
type Repairer struct {
	*initlog.Logger

	remark func(text string) // makes an event of a text
	asked  chan struct{}     // a signal: there are profiles in wanted

	mu     sync.Mutex
	wanted map[string]bool // profiles that are to be repaired
	status *client.Repair  // of the repair of everything
}

// New makes a Repairer that has nothing to do.
func New(v *initlog.Logger, remark func(text string)) *Repairer {
	return &Repairer{Logger: v, remark: remark, asked: make(chan struct{}, 1), wanted: make(map[string]bool)}
}

// Run repairs owners until ctx ends: everything first, if all says so, then what [Repairer.Adopt] asks for. It does nothing where
// no file can be given away.
func (r *Repairer) Run(ctx context.Context, o boot.Options, all bool) {
	if !o.Agent.Switches() {
		return
	}
	if all {
		r.repair(ctx, o, nil)
	}
	for {
		select {
		case <-r.asked:
			r.mu.Lock()
			only := slices.Sorted(maps.Keys(r.wanted))
			clear(r.wanted)
			r.mu.Unlock()
			if len(only) > 0 { // else the last repair took this request with it
				r.repair(ctx, o, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the homes of the named profiles, or everything when only is nil; the status shows how that goes.
func (r *Repairer) repair(ctx context.Context, o boot.Options, only []string) {
	show := func(now client.Repair) {
		if only == nil {
			r.TakeOver(&now)
		}
	}
	o.Only = only
	o.Say = func(l boot.Line) { // the result is said once, as an event
		if l.Warning {
			r.Remember(l.Text)
		}
	}
	result := boot.Repair(ctx, o, show)
	show(result.Repair)
	if result.Changed+result.Failed+result.Refused > 0 || result.Stopped != "" {
		r.remark(result.String())
	}
}

// Adopt makes a profile usable for the agent that somebody else has made: what a gateway needs to start now, the rest soon. It
// blocks on the disk.
func (r *Repairer) Adopt(ctx context.Context, o boot.Options, profile string) {
	if profile == profiles.Default || !o.Agent.Switches() {
		return
	}
	if err := boot.Adopt(ctx, o, profile); err != nil {
		r.Say("cannot give the files of profile %s to the agent's user: %v", profile, err)
	}
	r.mu.Lock()
	r.wanted[profile] = true
	r.mu.Unlock()
	select {
	case r.asked <- struct{}{}:
	default: // one is due already
	}
}

// Status is how far the repair of everything has come, nil before it began.
func (r *Repairer) Status() *client.Repair {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return nil
	}
	now := *r.status
	return &now
}

// TakeOver sets it: an earlier program of PID 1 has come so far.
func (r *Repairer) TakeOver(status *client.Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// Done reports whether everything was repaired.
func (r *Repairer) Done() bool {
	status := r.Status()
	return status != nil && status.Done
}
