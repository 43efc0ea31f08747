package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/fsutil/owntree"
	"hinit/internal/guard"
	"hinit/internal/pause"
)

// WrongOwner is a file with another owner than the agent that Repair has found. The process that created the file is unknown.
type WrongOwner struct {
	Path string
	UID  uint32 // uid of the former owner
	Err  string // why the owner could not be changed; "" if Repair has changed it
}

// Result is the outcome of [Repair].
type Result struct {
	client.Repair

	Refused int64 // files that keep their owner on purpose: device nodes, and root's files with several hard links
	Mounts  int64 // mount points that were not entered

	WrongOwners []WrongOwner // the first maxWrongOwners files with another owner
}

// String returns the result as one line for the log.
func (r Result) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "ownership: %d of %d files and directories given to the agent's user in %.1f s", r.Changed, r.Examined, r.Seconds)
	for i, n := range []int64{r.Failed, r.Refused, r.Mounts} {
		if n > 0 {
			fmt.Fprintf(&s, ", %d %s", n, [...]string{"failed", "refused", "mounts not entered"}[i])
		}
	}
	if r.StopReason != "" {
		s.WriteString("; stopped early: " + r.StopReason)
	}
	for _, c := range r.WrongOwners[:min(3, len(r.WrongOwners))] {
		fmt.Fprintf(&s, "; %q was uid %d's", c.Path, c.UID)
		if c.Err != "" {
			s.WriteString(" and still is: " + c.Err)
		}
	}
	return s.String()
}

const (
	maxWrongOwners = 10
	// maxPause is the maximum pause between two batches of files. A pause is as long as the last batch took, so that other
	// programs get half of the disk's time.
	maxPause = 20 * time.Millisecond
	// hangTimeout is how long Repair waits after its time limit for the end of its walk.
	hangTimeout = time.Second
	// maxFailures is the number of consecutive failures after which the walk of a directory ends.
	maxFailures = 100
)

// Reasons why Repair has ended early.
var (
	errInodes    = errors.New("more files than the budget allows")
	errTimeLimit = errors.New("it took longer than the budget allows")
	errNoChange  = errors.New("no owner can be changed here")
)

// Repair gives files of other users in the agent's directories to the agent's user. These directories are boot.AgentOnlyDirs,
// such as cron, profiles and pairing. With o.RepairEverything, they also include boot.MixedOwnerDirs, and Repair looks for all
// files of the agent's former uid (contract, section 2.1, steps 5 and 6). Repair runs when the gateways are up. It runs again
// with o.OnlyProfiles for profiles that appear later. It uses the disk only while the disk is idle (ioprio_set(2)), pauses
// after every few hundred files, and opens only directories.
//
// Repair follows no link and enters no mount, except a mount in the place of a directory of boot.AgentOnlyDirs. It skips device
// nodes. It also skips root's files with several hard links, because the agent could have linked a file that must stay root's.
// If the kernel prevents such links (see [fsutil.HardLinksProtected]), Repair gives these files to the agent too. A change of
// owner removes set-user-ID bits.
//
// If a home or another directory has too many files, or its owners can't be changed, Repair leaves it unfinished and continues
// with the next.
//
// One goroutine calls progress from time to time. Repair returns when it is done, at the time limit of o, or when ctx ends. It
// calls o.Say with a line if there is anything to report. If the process isn't root, or can't become the agent's user, Repair
// does nothing.
func Repair(ctx context.Context, o Options, progress func(client.Repair)) Result {
	o = o.withDefaults()
	if !o.Agent.SwitchesIdentity() {
		return Result{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.MaxTime, errTimeLimit)
	defer cancel()
	r := &repair{Options: o, progress: progress, walk: owntree.Walk{NewOwner: o.Owner()}, start: time.Now()}
	r.lastResult.Store(&Result{})
	done := guard.GoWithDone("repairing owners", func() {
		blocking.Run(blocking.Volume, func() {
			withIdlePriority(func() { r.publish(r.run(ctx), true) })
		})
	})
	if !pause.Until(ctx, done) {
		pause.AtMost(hangTimeout, done) // the walk checks ctx often, except when the disk hangs
	}
	result := *r.lastResult.Load()
	if cause := context.Cause(ctx); !result.Done && cause != nil {
		result.StopReason = cause.Error()
	}
	result.Directory, result.Done, result.Seconds = "", true, boot.SecondsSince(r.start)
	if result.Changed > 0 || result.Failed > 0 || result.Refused > 0 || result.StopReason != "" {
		l := boot.Info(result.String())
		l.Warning = result.Failed > 0 || result.Refused > 0 || result.StopReason != ""
		o.Say(l)
	}
	return result
}

// withIdlePriority runs work on a thread that uses the disk only while the disk is idle, if the kernel allows that. Afterwards
// it restores the priority of the thread. It reuses the thread, because a process limit may prevent a new thread.
func withIdlePriority(work func()) {
	const whoProcess, classIdle, classShift = 1, 3, 13 // values of IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE and IOPRIO_CLASS_SHIFT (linux/ioprio.h)
	runtime.LockOSThread()
	old, _, failed := unix.Syscall(unix.SYS_IOPRIO_GET, whoProcess, 0, 0)
	if failed == 0 {
		_, _, failed = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle<<classShift)
	}
	work()
	if failed == 0 {
		if _, _, failed = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, old); failed != 0 {
			return
		}
	}
	runtime.UnlockOSThread()
}

// repair is the state of one call of Repair. Only the goroutine of the walk uses the fields, except lastResult.
type repair struct {
	Options
	progress  func(client.Repair)
	start     time.Time
	walk      owntree.Walk
	directory struct {
		batch  time.Time    // start of the current batch
		left   int64        // files that may still be examined in this directory
		before owntree.Walk // the counters at the start of this directory
	}
	endReason  error // why the walk has ended early
	result     Result
	lastResult atomic.Pointer[Result] // result after the last batch; Done is set at the end of the walk
}

// run walks the directories that Repair must check. The error says why the repair is incomplete.
func (r *repair) run(ctx context.Context) error {
	d, err := fsutil.OpenNoLink(r.Home, nil)
	if err != nil {
		return err
	}
	defer d.Close()
	r.directory.batch = time.Now()
	r.walk.BetweenBatches = func() error {
		r.endReason = r.pauseBetweenBatches(ctx)
		return r.endReason
	}
	r.walk.OnFound = r.addWrongOwner
	if r.OnlyProfiles != nil {
		return r.chownHomes(d, r.OnlyProfiles)
	}
	for _, rel := range boot.AgentOnlyDirs {
		if rel == boot.ProfilesDir && r.Tenants.Enabled {
			err = r.chownHomes(d, nil)
		} else {
			err = r.chownTree(d, rel, rel, true)
		}
		if err != nil {
			return err
		}
	}
	if !r.RepairEverything {
		return nil
	}
	for _, rel := range boot.MixedOwnerDirs {
		if err := r.chownTree(d, rel, rel, false); err != nil {
			return err
		}
	}
	if err := r.chownFormerFiles(d); err != nil {
		return err
	}
	if r.result.StopReason == "" {
		_ = d.Remove(boot.RepairPendingFile)
	}
	return nil
}

// chownFormerFiles handles a change of the agent's uid: it gives the agent all other files of the former uid in the data
// directory. Files of other users keep their owners.
func (r *repair) chownFormerFiles(d *fsutil.Dir) error {
	was, _ := boot.PendingRepair(d)
	if was == 0 || was == r.walk.NewOwner.UID {
		return nil
	}
	r.walk.OnlyUID = was
	entries, _, _ := d.ReadAtMost("", fsutil.MaxDirNames)
	for _, e := range entries {
		switch info, err := d.Lstat(e.Name()); {
		case slices.Contains(boot.AgentOnlyDirs, e.Name()), slices.Contains(boot.MixedOwnerDirs, e.Name()), err != nil:
		case info.IsDir():
			if err := r.chownTree(d, e.Name(), e.Name(), false); err != nil {
				return err
			}
		case fsutil.UID(info) == was:
			if _, changed, err := d.Chown(e.Name(), r.walk.NewOwner); changed || err != nil {
				r.walk.Changed++
				r.addWrongOwner(d.Path()+"/"+e.Name(), was, err)
			}
		}
	}
	return nil
}

// chownHomes walks the homes of the profiles in names, or all homes if names is nil. It skips missing homes, links and mounts.
// A profile with its own user is a tenant. The tenant's user gets the files in the home, and the home itself if another user
// owns it. If a home belongs to a tenant's user under another profile's name, chownHomes does not change it.
func (r *repair) chownHomes(d *fsutil.Dir, names []string) error {
	all, err := d.OpenSubdir(boot.ProfilesDir)
	if err != nil {
		return nil //nolint:nilerr // without the directory there is no home
	}
	defer all.Close()
	tenants, homes, err := OwnersOf(r.Options.Options, all, "")
	if err != nil && r.Tenants.Enabled {
		r.walk.Failed++
		r.addWrongOwner(all.Path(), 0, err)
		return nil
	}
	if names == nil {
		names = slices.Collect(maps.Keys(homes)) // a random order, so that the time limit does not always hit the same homes
	}
	defer func(agents fsutil.Owner) {
		r.walk.NewOwner, r.walk.RefuseHardLinked, r.walk.TopLast, r.walk.ExpectedTopUID = agents, false, false, nil
	}(r.walk.NewOwner)
	for _, name := range names {
		r.walk.NewOwner, r.walk.RefuseHardLinked = HomeOwner(r.Options.Options, name, tenants, homes)
		if r.walk.RefuseHardLinked && homes[name] != r.walk.NewOwner.UID && errors.Is(all.CheckExists(name+"/"+r.Tenants.ProfileMarker), fs.ErrNotExist) {
			continue // the agent is still making this profile, and hinit gives its home when it has the marker
		}
		r.walk.TopLast, r.walk.ExpectedTopUID = r.walk.RefuseHardLinked, nil
		if was, known := homes[name]; known {
			r.walk.ExpectedTopUID = &was
		}
		if err := r.chownTree(all, name, boot.ProfilesDir+"/"+name, false); err != nil {
			return err
		}
		if r.walk.RefuseHardLinked {
			_ = all.Chmod(name, privateMode) // if the walk could not change this home, it has already reported that
			if homes[name] != r.walk.NewOwner.UID {
				_ = RecordName(all, name, name, r.walk.NewOwner.UID) // without a record, commands ask for --uid
			}
		}
	}
	return nil
}

// chownTree walks the directory rel, which messages call name. With crossTop, rel may be a mount point. It returns an
// error only if the whole repair must end.
func (r *repair) chownTree(d *fsutil.Dir, rel, name string, crossTop bool) error {
	r.result.Directory, r.directory.left, r.directory.before = name, r.MaxInodes, r.walk
	if r.walk.RefuseHardLinked { // the walk reads the tree once more, to count the links
		r.directory.left *= 2
	}
	err := r.walk.ChangeOwners(d, rel, crossTop)
	switch {
	case errors.Is(r.endReason, errInodes), errors.Is(r.endReason, errNoChange): // an agent must not prevent the repair of other homes
		r.result.StopReason, r.endReason = fmt.Sprintf("%v in %s", r.endReason, name), nil
	case r.endReason != nil:
		return r.endReason
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, fsutil.ErrSymlink), errors.Is(err, fsutil.ErrProtected): // moveHomes reports a renamed home
	case errors.Is(err, fsutil.ErrMount):
		r.walk.SkippedMounts++
	default:
		r.walk.Failed++
		r.addWrongOwner(d.Path()+"/"+rel, 0, err)
	}
	return nil
}

// pauseBetweenBatches reports the progress, checks the limits and pauses. The walk calls it between two batches of files.
func (r *repair) pauseBetweenBatches(ctx context.Context) error {
	if ctx.Err() != nil { // Repair may have returned, so progress must not be called
		return context.Cause(ctx)
	}
	r.publish(nil, false)
	r.progress(r.result.Repair)
	before := &r.directory.before
	switch r.directory.left -= owntree.BatchSize; {
	case r.directory.left <= 0:
		return errInodes
	case r.walk.Changed == before.Changed && r.walk.Failed >= before.Failed+maxFailures:
		return errNoChange
	}
	if !pause.For(ctx, min(maxPause, time.Since(r.directory.batch))) {
		return context.Cause(ctx)
	}
	r.directory.batch = time.Now()
	return nil
}

func (r *repair) addWrongOwner(path string, was uint32, err error) {
	c := WrongOwner{Path: fmt.Sprintf("%.300s", path), UID: was} // a path can be a megabyte long, and PID 1 keeps the result
	if err != nil {
		c.Err = boot.WithoutPath(err).Error()
	}
	if len(r.result.WrongOwners) < maxWrongOwners {
		r.result.WrongOwners = append(r.result.WrongOwners, c)
	}
}

// publish makes the result so far available to Repair. err says why the repair is incomplete. done says that the walk has ended.
func (r *repair) publish(err error, done bool) {
	r.result.Examined, r.result.Changed, r.result.Failed = r.walk.Examined, r.walk.Changed, r.walk.Failed
	r.result.Refused, r.result.Mounts, r.result.Done = r.walk.Refused, r.walk.SkippedMounts, done
	if err != nil {
		r.result.StopReason = err.Error()
	}
	r.lastResult.Store(new(r.result)) // store a copy, because the walk keeps changing r.result
}
