// Package owners gives the agent its files back in the background: all of them after the boot, a profile's when it appears or is
// started.
//
// The boot program does the repair. This package promises that only one runs at a time, and that requests that come meanwhile are joined
// into one. [Repairer.Run] uses the caller's goroutine; the package owns none.
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
	work   Work
	asked  chan struct{} // a signal: there are profiles in wanted

	mu     sync.Mutex
	wanted map[string]bool // profiles that are to be repaired
	status *client.Repair  // of the repair of everything
}

// Work does a repair, and calls take with everything that is said about it.
type Work func(ctx context.Context, job boot.Job, take func(boot.Message)) error

// New makes a Repairer that has nothing to do.
func New(v *initlog.Logger, remark func(text string), work Work) *Repairer {
	return &Repairer{Logger: v, remark: remark, work: work, asked: make(chan struct{}, 1), wanted: make(map[string]bool)}
}

// Run repairs owners until ctx ends: everything first, if all says so, then what [Repairer.Adopt] asks for. The job says as whom. Run
// does nothing where no file can be given away and nothing is planted.
func (r *Repairer) Run(ctx context.Context, job boot.Job, all bool) {
	switches := job.Options.Agent.Switches()
	if all && (switches || job.Planted) {
		r.repair(ctx, job, nil)
	}
	for switches {
		select {
		case <-r.asked:
			r.mu.Lock()
			only := slices.Sorted(maps.Keys(r.wanted))
			clear(r.wanted)
			r.mu.Unlock()
			if len(only) > 0 { // else the last repair took this request with it
				r.repair(ctx, job, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the homes of the named profiles, or everything when only is nil; the status shows how that goes.
func (r *Repairer) repair(ctx context.Context, job boot.Job, only []string) {
	job.Repair, job.Options.Only, job.Planted = true, only, job.Planted && only == nil
	err := r.work(ctx, job, func(m boot.Message) {
		switch {
		case m.Repair != nil && only == nil:
			r.TakeOver(m.Repair)
		case m.Agents != nil && m.Agents.Warning: // the result is said once, as an event
			r.Remember(m.Agents.Text)
		case m.Result != "":
			r.remark(m.Result)
		}
	})
	if err != nil && ctx.Err() == nil {
		r.Warn("cannot repair the owners of the agent's files: %v", err)
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
