package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hinit/internal/blocking"
	"hinit/internal/fsutil"
	"hinit/internal/guard"
)

// Progress is how far [Repair] has come.
type Progress struct {
	Directory string // of the agent's directories, the one it is in
	Seen      int64  // files and directories looked at
	Changed   int64  // given to the agent's user
	Failed    int64  // could not be changed or read
}

// Culprit is a file that was not the agent's. Which process made it can't be known any more; its owner is what there is.
type Culprit struct {
	Path string
	UID  uint32 // whose it was
	Err  string // why it is not the agent's now; "" when it is
}

// Result is what [Repair] did.
type Result struct {
	Progress

	Refused int64 // left alone on purpose: device nodes, and root's files with names elsewhere
	Mounts  int64 // mount points that were not entered
	Seconds float64

	Culprits []Culprit // the first that were found
	Stopped  string    // why it ended early, "" when it is through
	Links    []string  // directories of the agent's that are links and so were not entered
}

// String is a line for the log.
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
	// breath is the longest pause between two batches. Pausing as long as the batch took leaves half of the disk to others.
	breath = 20 * time.Millisecond
	// hopeless is how many failures in a row, with no success, end the walk.
	hopeless = 100
)

// Reasons for which Repair ends early.
var (
	errInodes   = errors.New("more files than the budget allows")
	errTime     = errors.New("it took longer than the budget allows")
	errHopeless = errors.New("no owner can be changed here")
)

// Repair gives the agent's user all that is in its directories, where it isn't already: cron, profiles and pairing, and with
// o.Full everything else that is the agent's beneath the data directory (contract, section 2.1, steps 5 and 6). It is to be
// called after the gateways are up, and with o.Only for profiles that came later; it takes as long as there are files, reads and writes only when nobody else wants the
// disk (ioprio_set(2)) and pauses after every few hundred files. Nothing is opened but directories.
//
// No link is followed and no mount entered, except that profiles, cron and pairing may be mounts themselves. Device nodes
// are not given away. A file of root's that has several names is given away only where the kernel keeps users from making
// such names (see [fsutil.HardLinksProtected]): elsewhere the agent could have brought in a file that root keeps in another
// directory of the volume. Set-user-ID bits do not survive a change of owner.
//
// progress, which may be nil, is called now and then by one goroutine. Repair returns when it is through, when a budget of o
// is used up, or when ctx ends; o.Say gets one line when there was anything to do or to complain of. A process that is not
// root, or can't become the agent's user, has nothing to repair.
func Repair(ctx context.Context, o Options, progress func(Progress)) Result {
	o = o.withDefaults()
	if !o.Agent.Switches() {
		return Result{}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.MaxTime, errTime)
	defer cancel()
	if progress == nil {
		progress = func(Progress) {}
	}
	r := &repair{Options: o, progress: progress, walk: fsutil.OwnWalk{To: o.owner()}, start: time.Now()}
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
		case <-time.After(mountPatience): // it looks at ctx often, unless the disk hangs
		}
	}
	result := r.close(context.Cause(ctx))
	if result.Changed > 0 || result.Failed > 0 || result.Refused > 0 || result.Stopped != "" {
		l := info(result.String())
		l.Warning = result.Failed > 0 || result.Refused > 0 || result.Stopped != ""
		o.Say(l)
	}
	return result
}

// idly runs work on a thread that gets what the disk has left over. Where that isn't possible the pauses must do. The thread is
// given back: a new one can't be had when a service has used up what the container may have.
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
			return // the runtime ends a thread whose goroutine has not unlocked it
		}
	}
	runtime.UnlockOSThread()
}

// repair is one run. The goroutine of the walk writes walk and the fields below mu; the others read copies under mu.
type repair struct {
	Options
	progress func(Progress)
	start    time.Time
	walk     fsutil.OwnWalk
	batch    time.Time // start of the present batch

	mu     sync.Mutex
	result Result
	ended  bool // the walk has
	closed bool // nobody waits for it any more
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
	for _, rel := range alwaysDirs {
		if !r.tree(d, rel, rel, true) {
			return
		}
	}
	if r.Full {
		for _, rel := range targetedDirs {
			if !r.tree(d, rel, rel, false) {
				return
			}
		}
		_ = d.Remove(pendingName)
	}
	r.end(nil)
}

// only walks the homes of the profiles that were asked for. One that is gone again, or is a link or a mount, is left alone.
func (r *repair) only(d *fsutil.Dir) {
	all, err := d.Sub(profilesName) // which may be a mount
	if err != nil {
		r.end(nil)
		return
	}
	defer all.Close()
	for _, name := range r.Only {
		if !r.tree(all, name, profilesName+"/"+name, false) {
			return
		}
	}
	r.end(nil)
}

// tree walks a directory that has the given name for people, and reports whether to go on.
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

// between counts, judges and pauses. It runs between two batches.
func (r *repair) between(ctx context.Context) error {
	r.mu.Lock()
	r.count()
	now, closed := r.result.Progress, r.closed
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

// count copies the walk's account. The caller holds mu and is the goroutine of the walk.
func (r *repair) count() {
	r.result.Seen, r.result.Changed, r.result.Failed = r.walk.Seen, r.walk.Changed, r.walk.Failed
	r.result.Refused, r.result.Mounts = r.walk.Refused, r.walk.Mounts
}

func (r *repair) found(path string, was uint32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Culprit{Path: path, UID: was}
	if err != nil {
		c.Err = bare(err).Error()
	}
	if len(r.result.Culprits) < mostCulprits {
		r.result.Culprits = append(r.result.Culprits, c)
	}
}

// end settles the result; err says why it is not complete.
func (r *repair) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count()
	r.ended = true
	if err != nil {
		r.result.Stopped = reason(err).Error()
	}
}

// reason takes the words around one of the reasons above off.
func reason(err error) error {
	for _, known := range []error{errInodes, errTime, errHopeless, context.Canceled} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}

// close returns the result and keeps a walk that hangs from doing more.
func (r *repair) close(cause error) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	result := r.result
	if !r.ended && cause != nil {
		result.Stopped = reason(cause).Error()
	}
	result.Culprits = append([]Culprit(nil), result.Culprits...)
	result.Seconds = since(r.start)
	return result
}
