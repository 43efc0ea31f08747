package prepare

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

// Owners makes the agent's user the owner of the agent's files again, in the background. It repairs all files once during the
// boot, and the files of a profile when the profile appears or is started. Requests during a repair are combined into one. The
// caller runs [Owners.All] and then [Owners.Run] in one goroutine, so that only one repair runs at a time. The other methods may
// be called from any goroutine.
type Owners struct {
	*initlog.Logger

	remark func(text string) // adds a text to the supervisor's history
	work   runJob
	move   func(ctx context.Context, profile string)
	asked  chan struct{} // capacity 1; wakes Run when there are wanted profiles

	mu     sync.Mutex
	wanted map[string]bool // profiles to repair
	status *client.Repair  // progress of the repair of all files
}

// runJob makes the boot program do a job, and calls take with each message about it.
type runJob func(ctx context.Context, job boot.Job, take func(boot.Message)) error

// newOwners returns Owners that has nothing to repair yet. remark adds a text to the supervisor's history, and work runs a
// repair. move corrects the owner of a profile's home, and blocks until that is done.
func newOwners(v *initlog.Logger, remark func(text string), work runJob, move func(ctx context.Context, profile string)) *Owners {
	return &Owners{Logger: v, remark: remark, work: work, move: move, asked: make(chan struct{}, 1), wanted: make(map[string]bool)}
}

// All repairs the owners of all files and returns when that is done or ctx has ended. job names the agent's user. All does
// nothing if hinit runs as the agent's user, unless the boot has filled the data directory from the image (job.Planted): then it
// makes these files durable.
func (r *Owners) All(ctx context.Context, job boot.Job) {
	if job.Options.Agent.Switches() || job.FilledFromImage {
		r.repair(ctx, job, nil)
	}
}

// Run repairs the owners in the profiles that Adopt was called with, until ctx ends. It returns immediately if hinit can't change
// owners.
func (r *Owners) Run(ctx context.Context, job boot.Job) {
	for job.Options.Agent.Switches() {
		select {
		case <-r.asked:
			r.mu.Lock()
			only := slices.Sorted(maps.Keys(r.wanted))
			clear(r.wanted)
			r.mu.Unlock()
			if len(only) > 0 { // an earlier repair may already have included these profiles
				r.repair(ctx, job, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the owners of the files in the homes of some profiles, which the parameter only lists. If only is nil, it
// repairs all files, and the status shows the progress.
func (r *Owners) repair(ctx context.Context, job boot.Job, only []string) {
	job.Repair, job.Options.OnlyProfiles, job.FilledFromImage = true, only, job.FilledFromImage && only == nil
	err := r.work(ctx, job, func(m boot.Message) {
		switch {
		case m.Repair != nil && only == nil:
			r.TakeOver(m.Repair)
		case m.Agents != nil && m.Agents.Warning: // the result is reported once, as an event
			r.RememberWarning(m.Agents.Text)
		case m.Result != "":
			r.remark(m.Result)
		}
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, supervisor.ErrStopping) {
		r.Warn("cannot repair the owners of the agent's files: %v", err)
	}
}

// Adopt makes the agent's user the owner of a profile that another user has created. Before it returns, it changes the
// files that a gateway needs. Run repairs the other files soon after. Adopt blocks on the disk.
func (r *Owners) Adopt(ctx context.Context, o boot.Options, profile string) {
	if profile == profiles.Default || !o.Agent.Switches() {
		return
	}
	if o.Tenants.Includes(profile) && !o.HasRightOwner(profile) {
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

// Status returns the progress of the repair of all files, or nil before the repair has begun.
func (r *Owners) Status() *client.Repair {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return nil
	}
	return new(*r.status)
}

// TakeOver sets the progress of the repair of all files. After a re-execution, the progress comes from the previous program.
func (r *Owners) TakeOver(status *client.Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// Done reports whether all files were repaired.
func (r *Owners) Done() bool {
	status := r.Status()
	return status != nil && status.Done
}
