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

// OwnerRepairer makes the agent's user the owner of the agent's files again, in the background. It repairs all files once during
// the boot, and the files of a profile when the profile appears or starts. Requests during a repair are combined into one more
// repair. The caller runs [OwnerRepairer.RepairAll] and then [OwnerRepairer.RepairWanted] in one goroutine, so that repairs never
// overlap. Any goroutine may call the other methods.
type OwnerRepairer struct {
	*initlog.Logger

	addRemark   func(text string) // adds a text to the event history
	runJob      runJob
	correctHome func(ctx context.Context, profile string)
	wakeUp      chan struct{} // channel of capacity 1 that wakes Run when wanted has profiles

	mu             sync.Mutex
	wantedProfiles map[string]bool // profiles whose files Run must repair
	status         *client.Repair  // progress of the repair of all files
}

// runJob makes the boot program do a job, and passes its messages to take.
type runJob func(ctx context.Context, job boot.Job, take func(boot.Message)) error

// newOwnerRepairer returns an OwnerRepairer without work. remark adds a text to the event history. work makes the boot program do
// a repair. move corrects the owner of a profile's home, and blocks until its end.
func newOwnerRepairer(v *initlog.Logger, remark func(text string), work runJob, move func(ctx context.Context, profile string)) *OwnerRepairer {
	return &OwnerRepairer{Logger: v, addRemark: remark, runJob: work, correctHome: move, wakeUp: make(chan struct{}, 1), wantedProfiles: make(map[string]bool)}
}

// RepairAll repairs the owners of all files, and returns when that is done or ctx has ended. job names the agent's user. If
// hinit runs as that user, no owner needs a repair. If the boot has filled the data directory from the image
// (job.FilledFromImage), RepairAll also syncs those files to the disk.
func (r *OwnerRepairer) RepairAll(ctx context.Context, job boot.Job) {
	if job.Options.Agent.SwitchesIdentity() || job.FilledFromImage {
		r.repair(ctx, job, nil)
	}
}

// RepairWanted repairs the profiles for which OwnerRepairer.CorrectOwner was called, until ctx ends. It returns at once if hinit
// can't change owners.
func (r *OwnerRepairer) RepairWanted(ctx context.Context, job boot.Job) {
	for job.Options.Agent.SwitchesIdentity() {
		select {
		case <-r.wakeUp:
			r.mu.Lock()
			only := slices.Sorted(maps.Keys(r.wantedProfiles))
			clear(r.wantedProfiles)
			r.mu.Unlock()
			if len(only) > 0 { // an earlier repair may have repaired all wanted profiles
				r.repair(ctx, job, only)
			}
		case <-ctx.Done():
			return
		}
	}
}

// repair repairs the homes of the profiles in only, or all files if only is nil. The status shows the progress of a
// repair of all files.
func (r *OwnerRepairer) repair(ctx context.Context, job boot.Job, only []string) {
	job.Repair, job.Options.OnlyProfiles, job.FilledFromImage = true, only, job.FilledFromImage && only == nil
	err := r.runJob(ctx, job, func(m boot.Message) {
		switch {
		case m.Repair != nil && only == nil:
			r.TakeOver(m.Repair)
		case m.AgentLogLine != nil && m.AgentLogLine.Warning: // the result is reported once, as an event
			r.RememberWarning(m.AgentLogLine.Text)
		case m.RepairSummary != "":
			r.addRemark(m.RepairSummary)
		}
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, supervisor.ErrStopping) {
		r.Warn("cannot repair the owners of the agent's files: %v", err)
	}
}

// CorrectOwner makes the agent's user the owner of a profile that another user has made. Before it returns, it changes the
// files that a gateway needs. Run changes the others soon after. CorrectOwner blocks on the disk.
func (r *OwnerRepairer) CorrectOwner(ctx context.Context, o boot.Options, profile string) {
	if profile == profiles.Default || !o.Agent.SwitchesIdentity() {
		return
	}
	if o.Tenants.Includes(profile) && !o.HasRightOwner(profile) {
		r.correctHome(ctx, profile)
	}
	if err := boot.ChownProfile(ctx, o, profile); err != nil {
		r.Say("cannot give the files of profile %s to the agent's user: %v", profile, err)
	}
	r.mu.Lock()
	r.wantedProfiles[profile] = true
	r.mu.Unlock()
	pause.Wake(r.wakeUp)
}

// Status returns the progress of the repair of all files; nil before it has begun.
func (r *OwnerRepairer) Status() *client.Repair {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil {
		return nil
	}
	return new(*r.status)
}

// TakeOver sets the progress of the repair of all files from the previous program.
func (r *OwnerRepairer) TakeOver(status *client.Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status = status
}

// AllRepaired reports whether the owners of all files were repaired.
func (r *OwnerRepairer) AllRepaired() bool {
	status := r.Status()
	return status != nil && status.Done
}
