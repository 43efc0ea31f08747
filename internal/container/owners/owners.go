// Package owners gives the agent's files back to the agent's user in the background. It repairs all files once at the boot, and the
// files of a profile when that appears or is started.
//
// The boot program does the repair. Requests during a repair are combined into one. [Repairer.All] and [Repairer.Run] use the
// goroutine of the caller, which calls one after the other, so that only one repair runs at a time.
package owners

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"hinit/client"
	"hinit/internal/boot"
	"hinit/internal/container/initlog"
	"hinit/internal/pause"
	"hinit/profiles"
	"hinit/supervisor"
)

// Repairer repairs owners. Its methods may be called from any goroutine.
type Repairer struct {
	*initlog.Logger

	remark func(text string) // adds a text to the history
	work   RunJob
	move   func(ctx context.Context, profile string)
	asked  chan struct{} // capacity 1; wakes Run when there are wanted profiles

	mu     sync.Mutex
	wanted map[string]bool // profiles to repair
	status *client.Repair  // of the repair of all files
}

// RunJob runs a repair, and calls take with each message about it.
type RunJob func(ctx context.Context, job boot.Job, take func(boot.Message)) error

// New returns a Repairer without work. move corrects the owner of a home, and blocks until that is done.
func New(v *initlog.Logger, remark func(text string), work RunJob, move func(ctx context.Context, profile string)) *Repairer {
	return &Repairer{Logger: v, remark: remark, work: work, move: move, asked: make(chan struct{}, 1), wanted: make(map[string]bool)}
}

// All repairs the owners of all files and returns when that is done or ctx has ended. The job names the user. All does nothing if
// hinit can't change owners and the image planted no files.
func (r *Repairer) All(ctx context.Context, job boot.Job) {
	if job.Options.Agent.Switches() || job.Planted {
		r.repair(ctx, job, nil)
	}
}

// Run repairs the owners of the profiles of [Repairer.Adopt] until ctx ends. It returns at once if hinit can't change owners.
func (r *Repairer) Run(ctx context.Context, job boot.Job) {
	for job.Options.Agent.Switches() {
		select {
		case <-r.asked:
			r.mu.Lock()
			only := slices.Sorted(maps.Keys(r.wanted))
			clear(r.wanted)
			r.mu.Unlock()
			if len(only) > 0 { // an earlier repair may have included all requests
				r.repair(ctx, job, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the homes of the named profiles, or everything if only is nil. The status shows the progress.
func (r *Repairer) repair(ctx context.Context, job boot.Job, only []string) {
	job.Repair, job.Options.OnlyProfiles, job.Planted = true, only, job.Planted && only == nil
	err := r.work(ctx, job, func(m boot.Message) {
		switch {
		case m.Repair != nil && only == nil:
			r.TakeOver(m.Repair)
		case m.Agents != nil && m.Agents.Warning: // the result is reported once, as an event
			r.Remember(m.Agents.Text)
		case m.Result != "":
			r.remark(m.Result)
		}
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, supervisor.ErrStopping) {
		r.Warn("cannot repair the owners of the agent's files: %v", err)
	}
}

// Adopt gives a profile that another user has made to the agent. It gives the files that a gateway needs at once; a repair gives
// the others soon. It blocks on the disk.
func (r *Repairer) Adopt(ctx context.Context, o boot.Options, profile string) {
	if profile == profiles.Default || !o.Agent.Switches() {
		return
	}
	if o.Tenants.On && !o.HasRightOwner(profile) {
		r.move(ctx, profile)
	}
	if err := boot.Adopt(ctx, o, profile); err != nil {
		r.Say("cannot give the files of profile %s to the agent's user: %v", profile, err)
	}
	r.mu.Lock()
	r.wanted[profile] = true
	r.mu.Unlock()
	pause.Wake(r.asked)
}

// Status returns the progress of the repair of all files, nil before it began.
func (r *Repairer) Status() *client.Repair {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return nil
	}
	now := *r.status
	return &now
}

// TakeOver sets the progress that the program before re-execution has reached.
func (r *Repairer) TakeOver(status *client.Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// Done reports whether all files were repaired.
func (r *Repairer) Done() bool {
	status := r.Status()
	return status != nil && status.Done
}
