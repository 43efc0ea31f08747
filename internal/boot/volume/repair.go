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
	"sync"
	"time"

	"hinit/internal/boot"

	"golang.org/x/sys/unix"

	"hinit/client"
	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Culprit is a file that did not belong to the agent, and its owner. The process that created it is unknown.
type Culprit struct {
	Path string
	UID  uint32 // the former owner
	Err  string // why the agent does not own it now; "" if it does
}

// Result is the outcome of [Repair].
type Result struct {
	client.Repair

	Refused int64 // left alone on purpose: device nodes, and root's files with several names
	Mounts  int64 // mount points that were not entered

	Culprits []Culprit // the first ones found
	Links    []string  // directories of the agent that are links, and so were skipped
}

// String returns a line for the log.
func (r Result) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "ownership: %d of %d files and directories given to the agent's user in %.1f s", r.Changed, r.Seen, r.Seconds)
	if r.Failed > 0 {
		fmt.Fprintf(&s, ", %d failed", r.Failed)
	}
	if r.Refused > 0 {
		fmt.Fprintf(&s, ", %d refused", r.Refused)
	}
	if r.Mounts > 0 {
		fmt.Fprintf(&s, ", %d mounts not entered", r.Mounts)
	}
	if r.Stopped != "" {
		s.WriteString("; stopped early: " + r.Stopped)
	}
	for _, c := range r.Culprits[:min(3, len(r.Culprits))] {
		fmt.Fprintf(&s, "; %q was uid %d's", c.Path, c.UID)
		if c.Err != "" {
			s.WriteString(" and still is: " + c.Err)
		}
	}
	return s.String()
}

const (
	mostCulprits = 10
	// breath is the longest pause between two batches. A pause is as long as the batch before it, so that others get half of the
	// disk's time.
	breath = 20 * time.Millisecond
	// hangPatience is how long a walk may take to end after its time is over.
	hangPatience = time.Second
	// hopeless is how many failures in a row end the walk.
	hopeless = 100
)

// Reasons for Repair to end early.
var (
	errInodes   = errors.New("more files than the budget allows")
	errTime     = errors.New("it took longer than the budget allows")
	errHopeless = errors.New("no owner can be changed here")
)

// Repair gives the files in the agent's directories that belong to other users to the agent's user. The directories are cron,
// profiles and pairing, and with o.Full all of the agent's beneath the data directory (contract, section 2.1, steps 5 and 6). It
// is called when the gateways are up, and with o.Only for profiles that appear later. It uses the disk only while that is idle
// (ioprio_set(2)), pauses after every few hundred files, and opens only directories.
//
// It follows no link and enters no mount, except that profiles, cron and pairing may be mounts themselves. It skips device nodes.
// It skips root's files with several names, because the agent could have linked a file that must stay root's. It gives them away
// only if the kernel prevents users from creating such names (see [fsutil.HardLinksProtected]). A change of owner removes
// set-user-ID bits.
//
// progress, which may be nil, is called from time to time, by one goroutine. Repair returns when it is done, when a budget of o
// is used up, or when ctx ends. o.Say gets one line if there is anything to report. In a process that is not root, or can't
// become the agent's user, it does nothing.
func Repair(ctx context.Context, o Options, progress func(client.Repair)) Result {
	o = o.withDefaults()
	if !o.Agent.Switches() {
		return Result{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.MaxTime, errTime)
	defer cancel()
	if progress == nil {
		progress = func(client.Repair) {}
	}
	r := &repair{Options: o, progress: progress, walk: fsutil.OwnWalk{To: o.Owner()}, start: time.Now()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer guard.Catch("repairing owners")
		_ = blocking.Do(blocking.Volume, func() error {
			idly(func() { r.run(ctx) })
			return nil
		})
	}()
	select {
	case <-done:
	case <-ctx.Done():
		select {
		case <-done:
		case <-time.After(hangPatience): // the walk checks ctx often, unless the disk hangs
		}
	}
	result := r.close(context.Cause(ctx))
	if result.Changed > 0 || result.Failed > 0 || result.Refused > 0 || result.Stopped != "" {
		l := boot.Info(result.String())
		l.Warning = result.Failed > 0 || result.Refused > 0 || result.Stopped != ""
		o.Say(l)
	}
	return result
}

// idly runs work on a thread with idle disk priority, if possible. It restores the thread afterwards, because a limit of
// processes may prevent a new one.
func idly(work func()) {
	const whoProcess, classIdle, classShift = 1, 3, 13 // linux/ioprio.h
	runtime.LockOSThread()
	old, _, failed := unix.Syscall(unix.SYS_IOPRIO_GET, whoProcess, 0, 0)
	if failed == 0 {
		_, _, failed = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, classIdle<<classShift)
	}
	work()
	if failed == 0 {
		_, _, failed = unix.Syscall(unix.SYS_IOPRIO_SET, whoProcess, 0, old)
		if failed != 0 {
			return // the runtime ends a thread that its goroutine still locks
		}
	}
	runtime.UnlockOSThread()
}

// repair is one call of Repair. The goroutine of the walk writes walk and the fields below mu; others read copies under mu.
type repair struct {
	Options
	progress func(client.Repair)
	start    time.Time
	walk     fsutil.OwnWalk
	batch    time.Time // start of the current batch

	mu     sync.Mutex
	result Result
	ended  bool // the walk has ended
	closed bool // Repair has returned
}

func (r *repair) run(ctx context.Context) {
	d, err := fsutil.OpenReal(r.Home, nil)
	if err != nil {
		r.end(err)
		return
	}
	defer d.Close()
	r.batch = time.Now()
	r.walk.Between = func() error { return r.between(ctx) }
	r.walk.Found = r.found
	if r.Only != nil {
		r.only(d)
		return
	}
	for _, rel := range boot.AlwaysDirs {
		if rel == boot.ProfilesDir && r.Tenants.On {
			if !r.homes(d, nil) {
				return
			}
			continue
		}
		if !r.tree(d, rel, rel, true) {
			return
		}
	}
	if r.Full {
		for _, rel := range boot.TargetedDirs {
			if !r.tree(d, rel, rel, false) {
				return
			}
		}
		if !r.formerly(d) {
			return
		}
		_ = d.Remove(boot.PendingFile)
	}
	r.end(nil)
}

// formerly gives the agent all other files in the data directory that belong to the agent's former uid, and reports whether to go
// on. Files of other users keep their owners.
func (r *repair) formerly(d *fsutil.Dir) bool {
	was, _ := boot.Pending(d)
	if was == 0 || was == r.walk.To.UID {
		return true
	}
	r.walk.From = was
	entries, _, err := d.ReadSome("", fsutil.MostNames)
	if err != nil {
		return true
	}
	for _, e := range entries {
		switch info, err := d.Lstat(e.Name()); {
		case slices.Contains(boot.AlwaysDirs, e.Name()), slices.Contains(boot.TargetedDirs, e.Name()), err != nil:
		case info.IsDir():
			if !r.tree(d, e.Name(), e.Name(), false) {
				return false
			}
		case fsutil.UID(info) == was:
			if _, changed, err := d.Chown(e.Name(), r.walk.To); changed || err != nil {
				r.walk.Changed++
				r.found(d.Path()+"/"+e.Name(), was, err)
			}
		}
	}
	return true
}

// only walks the homes of the requested profiles. It skips missing homes, links and mounts.
func (r *repair) only(d *fsutil.Dir) {
	if r.homes(d, r.Only) {
		r.end(nil)
	}
}

// homes walks the homes of the named profiles, nil for all. A tenant gets the files in its home, and the home itself if that must
// be moved. It reports whether to go on.
func (r *repair) homes(d *fsutil.Dir, names []string) bool {
	all, err := d.Sub(boot.ProfilesDir) // it may be a mount
	if err != nil {
		return true
	}
	defer all.Close()
	tenants, homes, _ := r.Tenants.OwnersOf(all)
	if names == nil {
		names = slices.Sorted(maps.Keys(homes))
	}
	agents := r.walk.To
	defer func() { r.walk.To, r.walk.Alone, r.walk.TopLast = agents, false, false }()
	for _, name := range names {
		r.walk.To, r.walk.Alone = r.HomeOwner(name, tenants)
		r.walk.TopLast = r.walk.Alone
		if !r.tree(all, name, boot.ProfilesDir+"/"+name, false) {
			return false
		}
		if r.walk.Alone {
			_, _ = all.Chmod(name, boot.PrivateMode) // the walk has reported the failure already
		}
	}
	return true
}

// tree walks a directory, which messages call name, and reports whether to go on.
func (r *repair) tree(d *fsutil.Dir, rel, name string, crossTop bool) bool {
	r.mu.Lock()
	r.result.Directory = name
	r.mu.Unlock()
	err := d.OwnTree(rel, crossTop, &r.walk)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return true
	case errors.Is(err, fsutil.ErrMount):
		r.walk.Mounts++
		return true
	case errors.Is(err, fsutil.ErrSymlink):
		r.mu.Lock()
		r.result.Links = append(r.result.Links, d.Path()+"/"+rel)
		r.mu.Unlock()
		return true
	case errors.Is(err, errInodes), errors.Is(err, errTime), errors.Is(err, errHopeless), errors.Is(err, context.Canceled):
		r.end(err)
		return false
	}
	r.walk.Failed++
	r.found(d.Path()+"/"+rel, 0, err)
	return true
}

// between counts, checks the limits and pauses between two batches.
func (r *repair) between(ctx context.Context) error {
	r.mu.Lock()
	r.count()
	now, closed := r.result.Repair, r.closed
	r.mu.Unlock()
	if closed {
		return errTime
	}
	r.progress(now)
	switch {
	case r.walk.Seen >= r.MaxInodes:
		return errInodes
	case r.walk.Changed == 0 && r.walk.Failed >= hopeless:
		return errHopeless
	}
	pause := time.NewTimer(min(breath, time.Since(r.batch)))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-pause.C:
	}
	r.batch = time.Now()
	return nil
}

// count copies the counters of the walk. The walk's goroutine calls it and holds mu.
func (r *repair) count() {
	r.result.Seen, r.result.Changed, r.result.Failed = r.walk.Seen, r.walk.Changed, r.walk.Failed
	r.result.Refused, r.result.Mounts = r.walk.Refused, r.walk.Mounts
}

func (r *repair) found(path string, was uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Culprit{Path: path, UID: was}
	if err != nil {
		c.Err = boot.Bare(err).Error()
	}
	if len(r.result.Culprits) < mostCulprits {
		r.result.Culprits = append(r.result.Culprits, c)
	}
}

// end completes the result. err says why the repair is incomplete, nil if it is complete.
func (r *repair) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count()
	r.ended = true
	if err != nil {
		r.result.Stopped = reason(err).Error()
	}
}

// reason returns the error of the list above that err wraps.
func reason(err error) error {
	for _, known := range []error{errInodes, errTime, errHopeless, context.Canceled} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// close returns the result, and makes a hung walk stop when its disk answers.
func (r *repair) close(cause error) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	result := r.result
	if !r.ended && cause != nil {
		result.Stopped = reason(cause).Error()
	}
	result.Culprits = append([]Culprit(nil), result.Culprits...)
	result.Directory, result.Done, result.Seconds = "", true, boot.Since(r.start)
	return result
}
